package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// paged are scenarios of the controller's page.
var paged = []entry{
	{"the list of all nodes is read through the API server, with the Role of its readers alone", listed},
	{"a thousand connections to its page keep the controller from nothing", crowded},
}

// outside is the address of this machine in the network of the nodes. The API server connects to no loopback address of a
// pod.
const outside = "172.30.0.1"

// behindService has the controller's Service lead to it, as if it ran in a pod.
func (s *scenario) behindService() {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: account, Labels: map[string]string{"app.kubernetes.io/name": account}}, Spec: sleeper()}
	pod.Spec.NodeName = rig.node1.name
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 9809}}
	_, err := harness.Client.CoreV1().Pods(harness.System).Create(s.Context(), pod, metav1.CreateOptions{})
	s.Must(err)
	s.Cleanup(func() {
		_, _ = harness.Command(backgroundContext, "kubectl", "--namespace", harness.System, "delete", "pod", account, "--force", "--grace-period=0")
	})
	s.Kubectl("--namespace", harness.System, "patch", "pod", account, "--subresource=status", "--type=merge", "--patch", fmt.Sprintf(
		`{"status": {"phase": "Running", "podIP": %[1]q, "podIPs": [{"ip": %[1]q}], "conditions": [{"type": "Ready", "status": "True"}]}}`, outside))
	s.Eventually("the Service has an endpoint", harness.Patience, func() string {
		_, err := harness.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/" + harness.System + "/services/" + account + ":http/proxy/readyz").DoRaw(s.Context())
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// Proves: F12.
func listed(s *scenario) {
	m := s.extra("listed", "1G")
	s.claim("alone", "late", naming(m.name))
	volume := s.bound("alone", m)
	s.Kubectl("patch", "pv", volume.Name, "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`)
	s.Kubectl("delete", "pvc", "alone")
	s.Kubectl("delete", "pv", volume.Name)
	s.event("Node", m.name, "VolumeWithoutPersistentVolume")
	s.behindService()
	s.Kubectl("create", "serviceaccount", "reader")
	reader := newProxy("reader")
	reader.as(s.tokenOf(s.Namespace, "reader"))
	list := func(more ...string) (string, error) {
		run := exec.CommandContext(s.Context(), os.Getenv("FLEET"), append([]string{"list", "--namespace", harness.System}, more...)...)
		run.Env = append(os.Environ(), "KUBECONFIG="+reader.config)
		out, err := run.CombinedOutput()
		return string(out), err
	}
	out, err := list()
	if err == nil || !strings.Contains(out, "rootcellar-fleet-reader") || !strings.Contains(out, "forbidden") {
		s.Errorf("without the Role: %v, %s", err, out)
	}
	s.Kubectl("--namespace", harness.System, "create", "rolebinding", "e2e-reader", "--role", "rootcellar-fleet-reader", "--serviceaccount", s.Namespace+":reader")
	s.Cleanup(func() {
		_, _ = harness.Command(backgroundContext, "kubectl", "--namespace", harness.System, "delete", "rolebinding", "e2e-reader")
	})
	s.Eventually("the Role is in force", harness.Patience, func() string {
		if out, err = list(); err != nil {
			return out
		}
		return ""
	})
	for _, m := range append(nodes(), m) {
		for _, pool := range []string{"default", "slow"} {
			found := false
			for line := range strings.Lines(out) {
				words := strings.Fields(line)
				found = found || len(words) > 2 && words[0] == m.name && words[1] == pool
			}
			if !found {
				s.Errorf("the list does not have pool %s of node %s:\n%s", pool, m.name, out)
			}
		}
	}
	if !strings.Contains(out, "node "+m.name+": VolumeWithoutPersistentVolume: ") {
		s.Errorf("the list does not have the difference:\n%s", out)
	}
	if strings.Contains(out, volume.Spec.CSI.VolumeHandle) {
		s.Errorf("the list has the id of a volume:\n%s", out)
	}
	out, err = list("--json")
	if s.Must(err); !json.Valid([]byte(out)) {
		s.Errorf("not JSON: %s", out)
	}
	for _, call := range reader.seen(func(c *call) bool { return !strings.HasSuffix(c.path, "/proxy/nodes") }) {
		s.Errorf("the list needs more rights: %s", &call)
	}
}

// crowd keeps this many connections to the controller's page, of which some ask and some say nothing, until the context ends.
func crowd(ctx context.Context, number int, opened *atomic.Int64) func() {
	var running sync.WaitGroup
	for i := range number {
		running.Go(func() {
			for ctx.Err() == nil {
				connection, err := net.DialTimeout("tcp", "127.0.0.1:9809", 5*time.Second)
				if err == nil {
					opened.Add(1)
					_ = connection.SetDeadline(time.Now().Add(20 * time.Second))
					end := context.AfterFunc(ctx, func() { _ = connection.Close() })
					switch i % 3 {
					case 0:
						_, _ = fmt.Fprint(connection, "GET /metrics HTTP/1.1\r\nHost: e2e\r\n\r\n")
					case 1:
						_, _ = fmt.Fprint(connection, "GET /nodes HTTP/1.1\r\nHost: ")
					}
					_, _ = io.Copy(io.Discard, connection)
					end()
					_ = connection.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
	}
	return running.Wait
}

// crowded has the probes of a kubelet from another address, with the timeout of the chart.
//
// Proves: F2, SV8.
func crowded(s *scenario) {
	s.sources()
	ctx, cancel := context.WithCancel(s.Context())
	var opened atomic.Int64
	wait := crowd(ctx, 1000, &opened)
	s.Cleanup(func() {
		cancel()
		wait()
	})
	s.Eventually("all are connected", harness.Patience, func() string {
		if found := opened.Load(); found < 1000 {
			return fmt.Sprint(found)
		}
		return ""
	})
	kubelet := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.ParseIP(outside)},
	}).DialContext}}
	probes := 0
	probe := func() string {
		for _, path := range []string{"/healthz", "/readyz"} {
			answer, err := kubelet.Get("http://" + outside + ":9809" + path)
			if err != nil {
				return err.Error()
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return fmt.Sprint(path, ": ", answer.Status)
			}
			probes++
		}
		return ""
	}
	s.Always("the probes are answered", 10*time.Second, probe)
	began := time.Now()
	for name, copy := range copies {
		s.claim(name, "late", copy, naming("never-there"))
		s.names(name, rig.node1.name, 10*time.Second)
	}
	for name := range copies {
		s.bound(name, rig.node1)
	}
	s.Always("the probes are answered", 10*time.Second, probe)
	s.Logf("%d probes, %d connections, two claims steered and bound in %v", probes, opened.Load(), time.Since(began).Round(time.Second))
}
