"""A chart runner for one machine: an API server for the real helm, controllers, and pods as namespaced processes.

Read it from the bottom up:

- pure: ``manifest`` ``selectors`` ``patches`` ``protobuf`` (reading what helm sends), ``store`` ``admission``
  ``resources`` ``discovery`` (what an API server keeps, refuses and says of itself), ``rollout`` ``budget`` ``jobs``
  ``blueprints`` (what controllers decide and make), ``pods`` ``dns_wire`` ``dns_zone`` ``firewall`` (what the network
  answers), ``environment`` ``volumes`` ``probes`` ``images`` ``container_plan`` (what a kubelet computes);
- shells: ``api_server`` (HTTP), ``controllers`` (decisions to objects), ``cluster`` (both, on a loop and thread of
  their own), ``hollow`` (pods that are ready at once, no root), ``machine`` ``fabric`` ``dns_server``
  ``container_shim`` ``process`` ``container`` ``pod_runner`` ``kubelet`` ``journal`` (pods that are real
  processes);
- for tests: ``helm_cli``, ``lab`` (all of it), ``release`` (the project's chart in it), ``clients`` (what runs
  beside it).

What it leaves out, because a chart's behaviour can be judged without: scheduling (affinity and spread are rendered
only), RBAC, CPU and memory limits, seccomp, load balancers. Claims are always kept.
"""
