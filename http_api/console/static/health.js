// What is wrong with a cluster, the worst first, and what to do about it. Pure; the same judgement as `milena doctor`.

import { duration, number, plural, size } from "./text.js";

export const DISK_FREE_MIN = 2 ** 30; // Some segments' room, as `milena doctor` has it.

export const isLate = (transaction, now) => now - transaction.began_ms > transaction.timeout_ms;

const wrong = (title, advice, href) => ({ severity: "bad", title, advice, href });
const warning = (title, advice, href) => ({ severity: "warn", title, advice, href });

/**
 * `free`: bytes left on the disks of nodes, by their ids; `latest`: transactions that are longest past their time, or next
 * to be, of how many there are, `transactions`.
 */
export function findings({ view, free, ready, latest = [], transactions, now }) {
  const found = [];
  const gone = view.brokers.filter((b) => b.is_fenced).map((b) => b.broker_id);
  const draining = view.brokers.filter((b) => b.is_draining && !b.is_fenced).map((b) => b.broker_id);
  if (!view.is_current) {
    found.push(wrong(
      "No majority of the metadata quorum answers",
      "What is shown is what this node knew last. Start the voters that are down: with a majority of them the cluster goes on by itself. Until then records can be read, and nothing can be changed.",
      "#/nodes",
    ));
  } else if (view.controller_id === null) {
    found.push(wrong("There is no controller", "One is elected within seconds of a Raft leader."));
  }
  // Without a majority nobody knows who is alive, who leads, or who is in sync.
  if (view.is_current) found.push(...ofPartitions(view));
  if (view.is_current && gone.length) {
    found.push(wrong(`${gone.length === 1 ? "Node" : "Nodes"} ${gone.join(", ")} gone`, "Start it again: it catches up and takes its replicas back. If its disk is lost, start it with an empty directory.", "#/nodes"));
  }
  for (const [id, bytes] of free) {
    if (bytes >= DISK_FREE_MIN) continue;
    found.push(wrong(`The disk of node ${id} has ${size(bytes)} left`, "Lower retention.ms or retention.bytes of large topics, or delete records; a node whose disk is full refuses writes.", "#/nodes"));
  }
  const late = latest.filter((one) => isLate(one, now));
  if (late.length) {
    const longest = Math.max(...late.map((one) => now - one.began_ms));
    const more = late.length === latest.length && transactions > late.length ? " or more" : "";
    found.push(warning(`${number(late.length)}${more} ${late.length === 1 ? "transaction" : "transactions"} past their time, the oldest open for ${duration(longest)}`, "Leaders end them within a second. One that stays is held up by a partition that cannot be written, or by the quorum; committed reading waits for it.", "#/transactions"));
  }
  if (ready?.status === 503) found.push(warning(`This node is not ready: ${ready.message}`, "Wait, or see its log."));
  if (draining.length) found.push(warning(`Draining: ${draining.join(", ")}`, "Such a node is about to stop, and leads nothing until it is started again.", "#/nodes"));
  const order = ["bad", "warn"];
  return found.sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity));
}

function ofPartitions({ offline, below_min_insync: refusing, under_replicated: behind }) {
  const found = [];
  if (offline) {
    found.push(wrong(`${plural(offline, "partition")} offline`, "They have no leader: nothing can be written or read. Start the nodes that were in sync.", "#/cluster"));
  }
  if (refusing) {
    found.push(wrong(`${plural(refusing, "partition")} below min.insync.replicas`, "acks=all is refused there. Bring their nodes back.", "#/cluster"));
  }
  if (behind) {
    found.push(warning(`${plural(behind, "partition")} under-replicated`, "Where all nodes are up, replicas are catching up; else start the nodes that are gone.", "#/cluster"));
  }
  return found;
}
