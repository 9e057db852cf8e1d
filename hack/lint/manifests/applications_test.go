package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const examples = "../../../deploy/examples/"

// document has the fields of the kinds of Flux and Argo CD that the examples have, and no others.
type document struct {
	APIVersion, Kind string
	Metadata         struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec struct {
		// OCIRepository and HelmRelease.
		Interval, URL string
		Ref           struct{ Tag string }
		LayerSelector struct{ MediaType, Operation string }
		ChartRef      struct{ Kind, Name string }
		Values        map[string]any
		// Application.
		Project string
		Source  struct {
			RepoURL, Chart, TargetRevision string
			Helm                           struct {
				ReleaseName  string
				SkipTests    bool
				ValuesObject map[string]any
			}
		}
		Destination struct{ Server, Namespace string }
		SyncPolicy  struct {
			Automated                struct{ Prune, SelfHeal bool }
			ManagedNamespaceMetadata struct{ Labels map[string]string }
			SyncOptions              []string
		}
	}
}

// documents reads a file of examples, by kind.
func documents(t *testing.T, name string) map[string]document {
	t.Helper()
	text, err := os.ReadFile(examples + name)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]document{}
	for _, part := range bytes.Split(text, []byte("\n---\n")) {
		var one document
		if err := yaml.UnmarshalStrict(part, &one); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found[one.APIVersion+" "+one.Kind] = one
	}
	return found
}

// renders checks that the chart takes these values, the same at each rendering.
func renders(t *testing.T, given map[string]any) {
	t.Helper()
	text, err := yaml.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	arguments := []string{values(t, string(text)), "--api-versions=snapshot.storage.k8s.io/v1"}
	found := objects(t, arguments...)
	same(t, found, objects(t, arguments...))
	var names []string
	for _, class := range all[*storagev1.StorageClass](found) {
		names = append(names, class.Name)
	}
	same(t, names, []string{"rootcellar", "rootcellar-image"})
}

func chartVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(chart + "/Chart.yaml")
	var metadata struct{ Version string }
	if err == nil {
		err = yaml.Unmarshal(text, &metadata)
	}
	if err != nil {
		t.Fatal(err)
	}
	return metadata.Version
}

func TestFluxExample(t *testing.T) {
	found := documents(t, "gitops/flux.yaml")
	same(t, len(found), 3)
	namespace, source, release := found["v1 Namespace"], found["source.toolkit.fluxcd.io/v1 OCIRepository"], found["helm.toolkit.fluxcd.io/v2 HelmRelease"]
	same(t, source.Spec.URL, "oci://registry.example/charts/rootcellar")
	same(t, source.Spec.Ref.Tag, chartVersion(t))
	same(t, release.Spec.ChartRef, struct{ Kind, Name string }{source.Kind, source.Metadata.Name})
	same(t, []string{source.Metadata.Namespace, release.Metadata.Namespace}, []string{namespace.Metadata.Name, namespace.Metadata.Name})
	same(t, namespace.Metadata.Labels["pod-security.kubernetes.io/enforce"], "privileged")
	renders(t, release.Spec.Values)
}

func TestArgoExample(t *testing.T) {
	found := documents(t, "gitops/argocd.yaml")["argoproj.io/v1alpha1 Application"]
	source := found.Spec.Source
	same(t, source.RepoURL+"/"+source.Chart, "registry.example/charts/rootcellar")
	same(t, source.TargetRevision, chartVersion(t))
	same(t, source.Helm.SkipTests, true)
	same(t, found.Spec.SyncPolicy.Automated.Prune, false)
	same(t, found.Spec.SyncPolicy.ManagedNamespaceMetadata.Labels["pod-security.kubernetes.io/enforce"], "privileged")
	renders(t, source.Helm.ValuesObject)
}

// The quota has classes of the chart.
func TestQuotaExample(t *testing.T) {
	text, err := os.ReadFile(examples + "gitops/quota.yaml")
	quota := one[*corev1.ResourceQuota](t, decoded(t, text, err))
	for name := range quota.Spec.Hard {
		class, _, found := strings.Cut(string(name), ".storageclass.storage.k8s.io/")
		if found && class != "rootcellar" && class != "rootcellar-image" {
			t.Errorf("it limits the class %s", class)
		}
	}
}

// applied returns an application's objects, whose class the default values of the chart have.
func applied(t *testing.T, file string) ([]runtime.Object, *appsv1.StatefulSet) {
	t.Helper()
	text, err := os.ReadFile(examples + file)
	found := decoded(t, text, err)
	set := one[*appsv1.StatefulSet](t, found)
	service := one[*corev1.Service](t, found)
	same(t, set.Spec.ServiceName, service.Name)
	same(t, service.Spec.Selector, set.Spec.Template.Labels)
	same(t, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
	asked := *set.Spec.VolumeClaimTemplates[0].Spec.StorageClassName
	has := func(class *storagev1.StorageClass) bool { return class.Name == asked }
	if !slices.ContainsFunc(all[*storagev1.StorageClass](objects(t)), has) {
		t.Errorf("the chart has no class %s", asked)
	}
	return found, set
}

func TestPostgresqlExample(t *testing.T) {
	_, set := applied(t, "postgresql/postgresql.yaml")
	same(t, *set.Spec.Replicas, 1)
}

// Each member is in the list of members, and alone on its node.
func TestEtcdExample(t *testing.T) {
	found, set := applied(t, "etcd/etcd.yaml")
	same(t, one[*policyv1.PodDisruptionBudget](t, found).Spec.Selector, set.Spec.Selector)
	pod := set.Spec.Template.Spec
	rules := pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	same(t, len(rules), 1)
	same(t, rules[0].TopologyKey, corev1.LabelHostname)
	same(t, rules[0].LabelSelector, set.Spec.Selector)
	var members []string
	for i := range *set.Spec.Replicas {
		members = append(members, fmt.Sprintf("etcd-%d=http://etcd-%[1]d.%s:2380", i, set.Spec.ServiceName))
	}
	for _, variable := range pod.Containers[0].Env {
		if variable.Name == "ETCD_INITIAL_CLUSTER" {
			same(t, variable.Value, strings.Join(members, ","))
			return
		}
	}
	t.Error("it names no members")
}
