package main

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A policy for each kind of pod names the ports and the peers that may connect, and limits nothing that the pods send.
func TestNetworkPolicies(t *testing.T) {
	const peers = `
networkPolicy:
  enabled: true
  metricsFrom: [{namespaceSelector: {matchLabels: {a: monitoring}}}]
  controllerFrom: [{ipBlock: {cidr: 10.0.0.10/32}}]
`
	const metrics, api, controller = "monitoring", "10.0.0.10/32", "rootcellar-fleet"
	for name, test := range map[string]struct {
		values string
		want   map[string]string
	}{
		"nobody": {"networkPolicy: {enabled: true}", map[string]string{"rootcellar": "", "rootcellar-resizer": ""}},
		"metrics": {peers, map[string]string{
			"rootcellar": "http provisioner < monitoring", "rootcellar-resizer": "http resizer < monitoring"}},
		"everything": {peers + "\nsnapshots: {enabled: true}\nfleet: {enabled: true}", map[string]string{
			"rootcellar":         "http < " + controller + "; http provisioner snapshotter < " + metrics,
			"rootcellar-resizer": "http resizer < " + metrics,
			"rootcellar-fleet":   "http < " + metrics + " " + api,
		}},
		"controller without pages": {"networkPolicy: {enabled: true}\nfleet: {enabled: true, inventory: false}\nresizer: {enabled: false}",
			map[string]string{"rootcellar": "", "rootcellar-fleet": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			found := objects(t, values(t, test.values))
			pods := map[string]corev1.PodTemplateSpec{"rootcellar": one[*appsv1.DaemonSet](t, found).Spec.Template}
			for _, deployment := range all[*appsv1.Deployment](found) {
				pods[deployment.Name] = deployment.Spec.Template
			}
			got := map[string]string{}
			for _, policy := range all[*networkingv1.NetworkPolicy](found) {
				same(t, policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress})
				same(t, policy.Spec.PodSelector.MatchLabels, pods[policy.Name].Labels)
				ports := map[string]bool{}
				for _, container := range pods[policy.Name].Spec.Containers {
					ports[container.Ports[0].Name] = true
				}
				var rules []string
				for _, rule := range policy.Spec.Ingress {
					var words []string
					for _, port := range rule.Ports {
						same(t, ports[port.Port.StrVal], true)
						words = append(words, port.Port.StrVal)
					}
					// Without a peer, a rule allows all.
					same(t, len(rule.From) > 0, true)
					words = append(words, "<")
					for _, peer := range rule.From {
						switch {
						case peer.IPBlock != nil:
							words = append(words, peer.IPBlock.CIDR)
						case peer.NamespaceSelector != nil:
							words = append(words, peer.NamespaceSelector.MatchLabels["a"])
						default:
							words = append(words, peer.PodSelector.MatchLabels["app.kubernetes.io/name"])
						}
					}
					rules = append(rules, strings.Join(words, " "))
				}
				got[policy.Name] = strings.Join(rules, "; ")
			}
			same(t, got, test.want)
		})
	}
	refused(t, []mistake{
		{"empty peer", "networkPolicy: {enabled: true, metricsFrom: [{}]}", "at '/networkPolicy/metricsFrom/0'"},
		{"unknown peer", "networkPolicy: {enabled: true, controllerFrom: [{cidr: 10.0.0.1/32}]}", "additional properties 'cidr' not allowed"},
	})
}
