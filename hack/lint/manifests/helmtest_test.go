package main

import (
	"os/exec"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// objectsOfTest renders the objects of `helm test`.
func objectsOfTest(t *testing.T, arguments ...string) []runtime.Object {
	t.Helper()
	arguments = append([]string{"template", "mine", chart, "--kube-version=1.37.2", "--namespace=n", "--show-only=templates/tests/claim.yaml"}, arguments...)
	text, err := exec.Command(helmBinary(t), arguments...).CombinedOutput()
	return decoded(t, text, err)
}

// `helm test` claims a volume of a class that deletes it, and its pods fit the strictest level of Pod Security.
func TestHelmTest(t *testing.T) {
	for set, want := range map[string]string{
		"":                             "rootcellar",
		"test.storageClass=other":      "other",
		"test.storageClass=rootcellar": "rootcellar",
		"storageClasses[0].reclaimPolicy=Retain,storageClasses[0].name=a,storageClasses[1].name=b": "b",
	} {
		found := objectsOfTest(t, "--set="+set)
		claim := one[*corev1.PersistentVolumeClaim](t, found)
		same(t, *claim.Spec.StorageClassName, want)
		same(t, claim.Spec.Resources.Requests.Storage().String(), "64Mi")
		jobs := all[*batchv1.Job](found)
		same(t, len(jobs), 2)
		for i, name := range []string{"rootcellar-test-write", "rootcellar-test-read"} {
			same(t, jobs[i].Name, name)
			same(t, jobs[i].Annotations["helm.sh/hook-weight"], []string{"1", "2"}[i])
			pod := jobs[i].Spec.Template.Spec
			same(t, pod.Volumes[0].PersistentVolumeClaim.ClaimName, claim.Name)
			same(t, *pod.AutomountServiceAccountToken, false)
			same(t, *pod.SecurityContext.RunAsNonRoot, true)
			same(t, pod.SecurityContext.SeccompProfile.Type, corev1.SeccompProfileTypeRuntimeDefault)
			security := pod.Containers[0].SecurityContext
			same(t, *security.AllowPrivilegeEscalation, false)
			same(t, security.Capabilities.Drop, []corev1.Capability{"ALL"})
			same(t, pod.Containers[0].Image, "docker.io/library/busybox:1.37")
			same(t, pod.Containers[0].Command[3], "release mine, revision 1")
		}
		for _, object := range found {
			annotations := object.(interface{ GetAnnotations() map[string]string }).GetAnnotations()
			same(t, annotations["helm.sh/hook"], "test")
			same(t, annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded,hook-failed")
		}
	}
	found := objectsOfTest(t, presetValues("openshift"), values(t, `
imageRegistry: mirror
test: {size: 1Gi, image: {repository: a/b, tag: c}, nodeSelector: {d: e}, tolerations: []}`))
	pod := all[*batchv1.Job](found)[0].Spec.Template.Spec
	same(t, pod.SecurityContext.RunAsUser == nil && pod.SecurityContext.FSGroup == nil, true)
	same(t, pod.Containers[0].Image, "mirror/a/b:c")
	same(t, pod.NodeSelector, map[string]string{"d": "e", "kubernetes.io/os": "linux"})
	same(t, len(pod.Tolerations), 0)
	same(t, one[*corev1.PersistentVolumeClaim](t, found).Spec.Resources.Requests.Storage().String(), "1Gi")
	// Without a class that deletes its volumes there is no test.
	text, err := exec.Command(helmBinary(t), "template", "mine", chart, "--kube-version=1.37.2",
		values(t, "storageClasses: [{name: a, reclaimPolicy: Retain}]")).CombinedOutput()
	same(t, err, nil)
	same(t, strings.Contains(string(text), "rootcellar-test"), false)
}

// A class that would leave a volume, and a size that is none, are refused.
func TestHelmTestMistakes(t *testing.T) {
	for set, message := range map[string]string{
		"test.storageClass=rootcellar-retain": "test.storageClass: rootcellar-retain has the reclaimPolicy Retain, so each test would leave a volume; name another class",
		"test.size=big":                       "at '/test/size'",
	} {
		text, err := exec.Command(helmBinary(t), "template", "mine", chart, "--kube-version=1.37.2", "--set="+set).CombinedOutput()
		same(t, err != nil, true)
		same(t, strings.Contains(string(text), message), true)
	}
}
