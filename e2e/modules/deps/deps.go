//go:build never

// Package deps keeps the dependencies of Kubernetes' own test binary in go.mod.
package deps

import _ "k8s.io/kubernetes/test/e2e"
