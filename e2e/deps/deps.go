//go:build never

// Package deps keeps in go.mod what Kubernetes' own test binary is built from.
package deps

import _ "k8s.io/kubernetes/test/e2e"
