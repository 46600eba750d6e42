{{/*
Checks that the schema cannot make: rules between values, and changes that would break a running cluster. For the
latter the chart looks up the live objects. helm does so on install and upgrade, but not for template and rollback.
*/}}

{{- define "milena.checks" -}}
{{- include "milena.checkValues" . -}}
{{- include "milena.checkTls" . -}}
{{- include "milena.checkAuth" . -}}
{{- include "milena.checkNames" . -}}
{{- $name := include "milena.fullname" . -}}
{{- $live := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace (printf "data-%s-0" $name) -}}
{{- if $live -}}
{{- $args := dict "root" . "live" $live "name" $name -}}
{{- include "milena.checkRecorded" $args -}}
{{- include "milena.checkAdmin" $args -}}
{{- include "milena.checkClaims" $args -}}
{{- include "milena.checkScaleDown" $args -}}
{{- else if $claim -}}
{{- include "milena.checkVoters" (dict "root" . "before" (dig "metadata" "annotations" "milena/voters" "" $claim)) -}}
{{- end -}}
{{- end -}}

{{- define "milena.checkValues" -}}
{{- $replicas := int .Values.replicas -}}
{{- $voters := int .Values.voters -}}
{{- if lt $replicas $voters -}}
{{- fail (printf "\nreplicas = %d is below voters = %d: every voter is one of the nodes." $replicas $voters) -}}
{{- end -}}
{{- $spare := max 1 (div (sub $voters 1) 2) | int -}}
{{- if and .Values.podDisruptionBudget.enabled (gt (int .Values.podDisruptionBudget.maxUnavailable) $spare) -}}
{{- fail (printf "\npodDisruptionBudget.maxUnavailable = %d breaks the quorum: with %d voters at most %d may be away." (int .Values.podDisruptionBudget.maxUnavailable) $voters $spare) -}}
{{- end -}}
{{- $drain := add (int .Values.drain.timeoutSeconds) (int .Values.drain.settleSeconds) -}}
{{- if gt (mul 2 $drain) (int .Values.terminationGracePeriodSeconds) -}}
{{- fail (printf "\ndrain.timeoutSeconds + drain.settleSeconds = %d is more than half of terminationGracePeriodSeconds = %d. A node needs the other half to sync and close its logs; if it is killed before, it recovers them at its next start." $drain (int .Values.terminationGracePeriodSeconds)) -}}
{{- end -}}
{{- $factor := int (default 1 .Values.config.default_replication_factor) -}}
{{- if gt $factor $replicas -}}
{{- fail (printf "\nconfig.default_replication_factor = %d is more than replicas = %d." $factor $replicas) -}}
{{- end -}}
{{- range .Values.topics -}}
{{- if gt (int .replicationFactor) $replicas -}}
{{- fail (printf "\ntopics: %s asks for replicationFactor = %d, but replicas = %d." .name (int .replicationFactor) $replicas) -}}
{{- end -}}
{{- end -}}
{{- $access := .Values.externalAccess -}}
{{- if and $access.perPod.enabled (not $access.enabled) -}}
{{- fail "\nexternalAccess.perPod.enabled needs externalAccess.enabled: clients start at the common address of all nodes." -}}
{{- end -}}
{{- if and $access.perPod.nodePorts (ne (len $access.perPod.nodePorts) $replicas) -}}
{{- fail (printf "\nexternalAccess.perPod.nodePorts names %d ports for replicas = %d pods." (len $access.perPod.nodePorts) $replicas) -}}
{{- end -}}
{{- $kafka := .Values.kafka -}}
{{- if and $kafka.advertise (not $kafka.enabled) -}}
{{- fail "\nkafka.advertise names addresses for Kafka clients, but kafka.enabled is false: set it, too." -}}
{{- end -}}
{{- if and $kafka.oneAddress (not $kafka.advertise) -}}
{{- fail "\nkafka.oneAddress needs kafka.advertise, the address that all nodes share." -}}
{{- end -}}
{{- if and $kafka.advertise (not $access.enabled) -}}
{{- fail "\nkafka.advertise needs externalAccess.enabled, which makes the services for clients outside." -}}
{{- end -}}
{{- if and $kafka.advertise (not $kafka.oneAddress) -}}
{{- if not $access.perPod.enabled -}}
{{- fail "\nkafka.advertise needs externalAccess.perPod.enabled: a Kafka client connects to each node. Or set kafka.oneAddress, if there is one address for all." -}}
{{- end -}}
{{- if and (gt $replicas 1) (not (contains "{ordinal}" $kafka.advertise)) -}}
{{- fail (printf "\nkafka.advertise = %s is the same for all %d nodes: use {ordinal}, or set kafka.oneAddress." $kafka.advertise $replicas) -}}
{{- end -}}
{{- end -}}
{{- if and $kafka.oneAddress (contains "{ordinal}" $kafka.advertise) -}}
{{- fail (printf "\nkafka.advertise = %s differs from node to node, but kafka.oneAddress is set: remove {ordinal}." $kafka.advertise) -}}
{{- end -}}
{{- $kafkaPorts := ternary 1 $replicas $kafka.oneAddress -}}
{{- if and $kafka.nodePorts (ne (len $kafka.nodePorts) $kafkaPorts) -}}
{{- fail (printf "\nkafka.nodePorts names %d ports, but %d are needed." (len $kafka.nodePorts) $kafkaPorts) -}}
{{- end -}}
{{- $ingress := .Values.ingress -}}
{{- if and $ingress.enabled (ne $ingress.path "/") (not $ingress.annotations) -}}
{{- fail (printf "\ningress.path = %s is not a path of a node. Add an annotation that tells the controller to remove it, such as\n  nginx.ingress.kubernetes.io/rewrite-target: /$2\nwith ingress.path = /log(/|$)(.*) and ingress.pathType = ImplementationSpecific." $ingress.path) -}}
{{- end -}}
{{- end -}}

{{- define "milena.checkTls" -}}
{{- range $part := list "api" "peer" -}}
{{- $tls := index $.Values.tls $part -}}
{{- if and $tls.enabled (not $tls.existingSecret) (not $.Values.tls.certManager.enabled) -}}
{{- fail (printf "\ntls.%s.enabled needs certificates: name a secret in tls.%s.existingSecret, or set tls.certManager.enabled." $part $part) -}}
{{- end -}}
{{- if and $tls.existingSecret (not $tls.enabled) -}}
{{- fail (printf "\ntls.%s.existingSecret names certificates that no node would use: set tls.%s.enabled, too." $part $part) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.api.enabled) (not .Values.tls.peer.enabled) -}}
{{- fail "\ntls.certManager.enabled makes certificates that no node would use: set tls.api.enabled or tls.peer.enabled, too." -}}
{{- end -}}
{{- $clients := .Values.tls.clients -}}
{{- if and $clients.existingSecret (not .Values.tls.api.enabled) -}}
{{- fail "\ntls.clients.existingSecret needs tls.api.enabled: clients show certificates over HTTPS only." -}}
{{- end -}}
{{- if and $clients.principalRule (not $clients.existingSecret) -}}
{{- fail "\ntls.clients.principalRule needs tls.clients.existingSecret, the authority of the certificates that it reads." -}}
{{- end -}}
{{- if and (hasPrefix "http://" .Values.externalAccess.perPod.advertise) .Values.tls.api.enabled -}}
{{- fail "\nexternalAccess.perPod.advertise begins with http://, but tls.api.enabled makes the API HTTPS." -}}
{{- end -}}
{{- end -}}

{{- define "milena.checkAuth" -}}
{{- if and .Values.config.reset_admin (not (include "milena.asksCallers" .)) -}}
{{- fail "\nconfig.reset_admin gives auth.adminUser the password in its secret, but auth.enabled is false, so no node has a password.\nSet auth.enabled=true, or remove config.reset_admin." -}}
{{- end -}}
{{- end -}}

{{/* Claims are named after the StatefulSet: under another name the nodes would start empty. */}}
{{- define "milena.checkNames" -}}
{{- $name := include "milena.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "\n%s cannot be the name of a service, which must begin with a letter and have no dots: set fullnameOverride." $name) -}}
{{- end -}}
{{- range (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items -}}
{{- $labels := default dict .metadata.labels -}}
{{- $isOurs := and (eq (dig "app.kubernetes.io/instance" "" $labels) $.Release.Name) (eq (dig "helm.sh/chart" "" $labels | regexFind "^[a-z]+") $.Chart.Name) -}}
{{- if and $isOurs (ne .metadata.name $name) -}}
{{- fail (printf "\nThe nodes run as StatefulSet %s, but these values name it %s: the cluster would start empty, without its claims.\nKeep the name: --set fullnameOverride=%s" .metadata.name $name .metadata.name) -}}
{{- end -}}
{{- if and $isOurs (ne (dig "spec" "selector" "matchLabels" "app.kubernetes.io/name" "" .) (include "milena.name" $)) -}}
{{- fail (printf "\nnameOverride would change the selector of StatefulSet %s, which is immutable: keep it." $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "milena.fullStop" -}}
To change it anyway, all nodes must stop at the same time; claims and records stay:
  helm uninstall {{ .Release.Name }} --namespace {{ .Release.Namespace }} --wait
  helm install {{ .Release.Name }} ... with the new values
{{- end -}}

{{- define "milena.checkVoters" -}}
{{- $voters := .root.Values.voters | int | toString -}}
{{- if and .before (ne .before $voters) -}}
{{- fail (printf "\nvoters = %s, but this cluster was made with %s, and the members of a quorum cannot be changed.\nKeep voters: %s and grow with replicas; or install a new release with voters: %s and copy the topics." $voters .before .before $voters) -}}
{{- end -}}
{{- end -}}

{{/* Values that may change only while all nodes are stopped. Annotations of the StatefulSet record them. */}}
{{- define "milena.checkRecorded" -}}
{{- $recorded := default dict .live.metadata.annotations -}}
{{- include "milena.checkVoters" (dict "root" .root "before" (dig "milena/voters" "" $recorded)) -}}
{{- $tls := .root.Values.tls.peer.enabled | toString -}}
{{- $tlsBefore := dig "milena/peer-tls" "" $recorded -}}
{{- if and $tlsBefore (ne $tlsBefore $tls) -}}
{{- fail (printf "\ntls.peer.enabled = %s, but the nodes run with %s. Nodes with and without TLS cannot connect, so a rolling update would stop at its first pod.\n%s" $tls $tlsBefore (include "milena.fullStop" .root)) -}}
{{- end -}}
{{- $secret := include "milena.clusterSecretRef" .root -}}
{{- $secretBefore := dig "milena/cluster-secret" "" $recorded -}}
{{- if and $secretBefore (ne $secretBefore $secret) -}}
{{- fail (printf "\nclusterSecret names %s, but the nodes run with %s. Nodes with different secrets refuse each other, so a rolling update would stop at its first pod.\n%s" $secret $secretBefore (include "milena.fullStop" .root)) -}}
{{- end -}}
{{- end -}}

{{/* Nodes create the first user only in a cluster without users. A name that changes later creates no user. */}}
{{- define "milena.checkAdmin" -}}
{{- $recorded := default dict .live.metadata.annotations -}}
{{- $userBefore := dig "milena/admin-user" "" $recorded -}}
{{- $secretBefore := dig "milena/admin-secret" "" $recorded -}}
{{- if and (include "milena.asksCallers" .root) $userBefore (not .root.Values.config.reset_admin) -}}
{{- $user := .root.Values.auth.adminUser -}}
{{- $secret := include "milena.adminSecretName" .root -}}
{{- if ne $user $userBefore -}}
{{- fail (printf "\nauth.adminUser = %s, but the first user of this cluster is %s, and nodes create no second one. The cluster would refuse the chart's drain, tests and jobs.\nKeep auth.adminUser: %s; or let the nodes make %s a superuser with the password in secret %s, only for this upgrade: --set config.reset_admin=true" $user $userBefore $userBefore $user $secret) -}}
{{- end -}}
{{- if ne $secret $secretBefore -}}
{{- fail (printf "\nauth.existingSecret names %s, but the nodes run with %s. A cluster that has users ignores the new password, and would refuse the chart's drain, tests and jobs.\nKeep the secret; or let the nodes give %s the password in %s, only for this upgrade: --set config.reset_admin=true" $secret $secretBefore $user $secret) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A Kubernetes quantity as a plain number, so that 1024Mi is 1Gi. */}}
{{- define "milena.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- $text := toString . -}}
{{- printf "%.0f" (mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[A-Za-z]*$" $text))) -}}
{{- end -}}

{{/* Fields of the claims, which are immutable in a StatefulSet. */}}
{{- define "milena.checkClaims" -}}
{{- $wanted := .root.Values.persistence -}}
{{- $claims := default list .live.spec.volumeClaimTemplates -}}
{{- if ne (empty $claims) (not $wanted.enabled) -}}
{{- fail (printf "\npersistence.enabled = %t, but the nodes run %s claims, and a StatefulSet's claims are immutable: the nodes would start empty.\nInstall a new release and copy the topics." $wanted.enabled (ternary "without" "with" (empty $claims))) -}}
{{- end -}}
{{- if $claims -}}
{{- $claim := first $claims -}}
{{- $size := $claim.spec.resources.requests.storage -}}
{{- if ne (include "milena.bytes" $size) (include "milena.bytes" $wanted.size) -}}
{{- fail (printf "\npersistence.size = %s, but the claims are of %s, and the size in a StatefulSet is immutable. If the storage class allows expansion, run:\n  kubectl -n %s patch pvc data-%s-0 -p '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"%s\"}}}}'    # for each pod; claims never shrink\n  kubectl -n %s delete statefulset %s --cascade=orphan    # the pods keep running\nThen run this upgrade again: it creates the StatefulSet again." $wanted.size $size .root.Release.Namespace .name $wanted.size .root.Release.Namespace .name) -}}
{{- end -}}
{{- $class := default "" $claim.spec.storageClassName -}}
{{- $sameModes := eq (toJson $claim.spec.accessModes) (toJson $wanted.accessModes) -}}
{{- $sameNotes := eq (toJson (omit (default dict $claim.metadata.annotations) "milena/voters")) (toJson (default dict $wanted.annotations)) -}}
{{- if not (and (eq $class (default "" $wanted.storageClass)) $sameModes $sameNotes) -}}
{{- fail (printf "\npersistence.storageClass, accessModes and annotations are immutable in a StatefulSet; the claims have storageClass %q, accessModes %s, annotations %s.\nTo change them for new claims, delete the StatefulSet and leave its pods running:\n  kubectl -n %s delete statefulset %s --cascade=orphan\nThen run this upgrade again. A node gets the new kind of claim when its own is deleted, and restores its replicas from the others. Do this one node at a time, and only while `milena status` is healthy." $class (toJson $claim.spec.accessModes) (toJson (omit (default dict $claim.metadata.annotations) "milena/voters")) .root.Release.Namespace .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A node that is scaled away takes its replicas with it, so they must be moved first. */}}
{{- define "milena.checkScaleDown" -}}
{{- $wanted := int .root.Values.replicas -}}
{{- $running := int .live.spec.replicas -}}
{{- $emptied := list -}}
{{- range .root.Values.scaleDown.emptiedNodes }}{{ $emptied = append $emptied (int .) }}{{ end -}}
{{- $holding := list -}}
{{- $leaving := list -}}
{{- range $id := untilStep (add1 $wanted | int) (add1 $running | int) 1 -}}
{{- $leaving = append $leaving $id -}}
{{- if not (has $id $emptied) }}{{ $holding = append $holding $id }}{{ end -}}
{{- end -}}
{{- if $holding -}}
{{- $moves := list -}}
{{- range $holding }}{{ $moves = append $moves (printf "  kubectl -n %s exec %s-0 -- milena rebalance --drain %v --wait" $.root.Release.Namespace $.name .) }}{{ end -}}
{{- fail (printf "\nreplicas = %d, but %d nodes run: node(s) %s would stop for good, with all their replicas.\nMove their replicas to the other nodes first:\n%s\nWhen they hold no replicas, confirm it:\n  --set 'scaleDown.emptiedNodes={%s}'" $wanted $running (join ", " $holding) (join "\n" $moves) (join "," $leaving)) -}}
{{- end -}}
{{- end -}}
