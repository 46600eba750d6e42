// Problems of a cluster, the worst first, and what to do about them. Pure; the same rules as `milena doctor`.

import { duration, number, plural, size } from "./text.js";

export const DISK_FREE_MIN = 2 ** 30; // Space for some segments, as in `milena doctor`.

export const isLate = (transaction, now) => now - transaction.began_ms > transaction.timeout_ms;

const wrong = (title, advice, href) => ({ severity: "bad", title, advice, href });
const warning = (title, advice, href) => ({ severity: "warn", title, advice, href });

/**
 * `free`: free bytes on the disks of nodes, by node id. `latest`: the transactions with the earliest deadlines.
 * `transactions`: the number of all open transactions.
 */
export function findings({ view, free, ready, latest = [], transactions, now }) {
  const found = [];
  const gone = view.brokers.filter((b) => b.is_fenced).map((b) => b.broker_id);
  const draining = view.brokers.filter((b) => b.is_draining && !b.is_fenced).map((b) => b.broker_id);
  if (!view.is_current) {
    found.push(wrong(
      "No majority of the metadata quorum responds",
      "This is the last state that this node knew. Start the voters that are down: with a majority of them the cluster continues by itself. Until then records can be read, and nothing can be changed.",
      "#/nodes",
    ));
  } else if (view.controller_id === null) {
    found.push(wrong("There is no controller", "One is elected within seconds of a Raft leader."));
  }
  // Without a majority no node knows which nodes are alive, lead or are in sync.
  if (view.is_current) found.push(...ofPartitions(view));
  if (view.is_current && gone.length) {
    found.push(wrong(`${gone.length === 1 ? "Node" : "Nodes"} ${gone.join(", ")} gone`, "Start it again: it catches up with its replicas. If its disk is lost, start it with an empty directory.", "#/nodes"));
  }
  for (const [id, bytes] of free) {
    if (bytes >= DISK_FREE_MIN) continue;
    found.push(wrong(`The disk of node ${id} has ${size(bytes)} left`, "Lower retention.ms or retention.bytes of large topics, or delete records. A node with a full disk refuses writes.", "#/nodes"));
  }
  const late = latest.filter((one) => isLate(one, now));
  if (late.length) {
    const longest = Math.max(...late.map((one) => now - one.began_ms));
    const more = late.length === latest.length && transactions > late.length ? " or more" : "";
    found.push(warning(`${number(late.length)}${more} ${late.length === 1 ? "transaction" : "transactions"} past their timeout, the oldest open for ${duration(longest)}`, "Leaders end them within a second. If one stays, a partition cannot be written, or the quorum does not respond. Readers of committed records wait for it.", "#/transactions"));
  }
  if (ready?.status === 503) found.push(warning(`This node is not ready: ${ready.message}`, "Wait, or read its log."));
  if (draining.length) found.push(warning(`Draining: ${draining.join(", ")}`, "A draining node is about to stop. It leads no partition until it is started again.", "#/nodes"));
  const order = ["bad", "warn"];
  return found.sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity));
}

function ofPartitions({ offline, below_min_insync: refusing, under_replicated: behind }) {
  const found = [];
  if (offline) {
    found.push(wrong(`${plural(offline, "partition")} offline`, "They have no leader: nothing can be written or read. Start the nodes that were in sync.", "#/cluster"));
  }
  if (refusing) {
    found.push(wrong(`${plural(refusing, "partition")} below min.insync.replicas`, "They refuse acks=all. Start their nodes again.", "#/cluster"));
  }
  if (behind) {
    found.push(warning(`${plural(behind, "partition")} under-replicated`, "If all nodes are up, replicas are catching up. Otherwise start the nodes that are gone.", "#/cluster"));
  }
  return found;
}
