package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

const applicationsPage = "docs/applications.md"

// application follows a section of the page about applications, in a directory with an example that fits the disks here.
type application struct {
	*scenario
	blocks [][]string
	dir    string
}

// application changes the example of a section.
func (s *scenario) application(heading, example string, changes ...string) *application {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root, "deploy/examples", example))
	s.Must(err)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(string(text), changes[i]) {
			s.Fatalf("%s lacks %q", example, changes[i])
		}
	}
	dir := s.TempDir()
	file := filepath.Join(dir, "deploy/examples", example)
	s.Must(os.MkdirAll(filepath.Dir(file), 0o755))
	s.Must(os.WriteFile(file, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600))
	return &application{s, shellBlock.FindAllStringSubmatch(s.section(applicationsPage, heading), -1), dir}
}

// step runs the next block, which must contain this text, in the namespace of the scenario.
func (a *application) step(text string) string {
	a.Helper()
	if len(a.blocks) == 0 || !strings.Contains(a.blocks[0][2], text) {
		a.Fatalf("the next block is not the one with %q: %q", text, a.blocks)
	}
	commands := a.blocks[0][2]
	a.blocks = a.blocks[1:]
	return a.administrator(a.dir, strings.ReplaceAll(commands, "kubectl ", "kubectl --namespace "+a.Namespace+" "))
}

// done checks that every block has run.
func (a *application) done() {
	a.Helper()
	if len(a.blocks) > 0 {
		a.Fatalf("not followed: %q", a.blocks)
	}
}

// end deletes a StatefulSet with the claims of its pods.
func (a *application) end(set string) {
	a.Helper()
	a.Kubectl("delete", "statefulset", set, "--cascade=foreground", "--timeout", harness.Patience.String())
	a.Kubectl("delete", "pvc", "--all", "--timeout", harness.Patience.String())
	a.detached()
}

// postgresExample has a new pod, and then a lost volume.
//
// Proves: K1, K2.
func postgresExample(s *scenario) {
	class := s.Class(map[string]string{"pool": "reflink", "kind": "image"})
	a := s.application("PostgreSQL", "postgresql/postgresql.yaml", "storageClassName: rootcellar-image", "storageClassName: "+class,
		"storage: 10Gi", "storage: "+databaseSize)
	if out := a.step("kubectl apply"); !strings.Contains(out, "PostgreSQL 15") {
		s.Fatalf("it prints\n%s", out)
	}
	psql := func(query string) (string, error) {
		return s.exec("postgresql-0", `psql --no-psqlrc -Atc "`+query+`" "host=127.0.0.1 password=$(cat /etc/postgresql/password)"`)
	}
	said, err := psql("create table kept as select 42 as n; select n from kept")
	s.Must(err)
	if !strings.HasSuffix(said, "42") {
		s.Fatalf("PostgreSQL says %q", said)
	}
	if out, err := s.exec("postgresql-0", `psql -c "select 1" "host=127.0.0.1 password=wrong" 2>&1`); err == nil || !strings.Contains(out, "password authentication failed") {
		s.Fatalf("with another password: %v %q", err, out)
	}
	a.step("existing")
	volume := s.volume("data-postgresql-0").Name
	s.Kubectl("delete", "pod", "postgresql-0")
	s.Kubectl("rollout", "status", "statefulset/postgresql", "--timeout", harness.Patience.String())
	if said, err = psql("select n from kept"); err != nil || said != "42" || s.volume("data-postgresql-0").Name != volume {
		s.Fatalf("a new pod: %v %q", err, said)
	}
	if log := s.Kubectl("logs", "postgresql-0"); strings.Contains(log, "not properly shut down") {
		s.Fatalf("PostgreSQL was killed:\n%s", log)
	}
	// No empty database takes the place of the lost one, unless somebody asks for it.
	s.Kubectl("delete", "pvc", "data-postgresql-0", "--wait=false")
	s.Kubectl("delete", "pod", "postgresql-0")
	s.Eventually("PostgreSQL refuses the empty volume", harness.Patience, func() string {
		out, err := s.shell("kubectl", "--namespace", s.Namespace, "logs", "postgresql-0")
		if err == nil && strings.Contains(out, "the volume has no database") {
			return ""
		}
		return fmt.Sprint(err, out)
	})
	a.step("--replicas 0")
	s.Kubectl("set", "env", "statefulset/postgresql", "DATABASE=new")
	a.step("--replicas 1")
	a.done()
	if said, err = psql("select count(*) from pg_tables where tablename = 'kept'"); err != nil || said != "0" {
		s.Fatalf("on a new volume: %v %q", err, said)
	}
	a.end("postgresql")
}

// introduce gives the members of etcd the addresses of the others, because the cluster has no DNS. It returns why it cannot yet.
func (s *scenario) introduce() string {
	pods, err := harness.Client.CoreV1().Pods(s.Namespace).List(s.ctx(), metav1.ListOptions{LabelSelector: "app=etcd"})
	if err != nil {
		return err.Error()
	}
	hosts := "127.0.0.1 localhost"
	for _, pod := range pods.Items {
		if pod.Status.PodIP == "" || pod.DeletionTimestamp != nil {
			return "pod " + pod.Name + " is " + string(pod.Status.Phase)
		}
		hosts += fmt.Sprintf("\n%s %s.etcd %[2]s", pod.Status.PodIP, pod.Name)
	}
	if len(pods.Items) != 3 {
		return fmt.Sprintf("%d pods", len(pods.Items))
	}
	for _, pod := range pods.Items {
		file := filepath.Join(os.Getenv("KUBELET_DIR"), "pods", string(pod.UID), "etc-hosts")
		// The file is mounted into the container, so it stays the same one. The kubelet writes it at each start.
		if out, err := s.on(nodeNamed(pod.Spec.NodeName), "sh", "-euc", `[ "$(cat "$2")" = "$1" ] || echo "$1" >"$2"`, "sh", hosts, file); err != nil {
			return out
		}
	}
	return ""
}

// introduceAll introduces the members again and again until the scenario ends.
func (s *scenario) introduceAll() {
	ctx, stop := context.WithCancel(s.ctx())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			s.introduce()
			time.Sleep(time.Second)
		}
	}()
	s.Cleanup(func() {
		stop()
		<-done
	})
}

// etcdExample has two nodes for three members, so two of them share a node here.
//
// Proves: K1, K2.
func etcdExample(s *scenario) {
	a := s.application("etcd", "etcd/etcd.yaml", "topologyKey: kubernetes.io/hostname", "topologyKey: rootcellar.example/none", "storage: 4Gi", "storage: 256Mi",
		"command: [etcd]", `command: [sh, -c, "until grep -q ' etcd-2.etcd ' /etc/hosts; do sleep 0.2; done; exec etcd"]`)
	s.introduceAll()
	a.step("kubectl apply")
	etcdctl := func(pod string, arguments ...string) (string, error) {
		return s.shell("kubectl", append([]string{"--namespace", s.Namespace, "exec", pod, "--", "etcdctl"}, arguments...)...)
	}
	out, err := etcdctl("etcd-0", "put", "kept", "42")
	s.Must(err)
	if out != "OK" {
		s.Fatalf("etcd says %q", out)
	}
	a.step("existing")
	if out, err = etcdctl("etcd-2", "get", "kept", "--print-value-only"); err != nil || out != "42" {
		s.Fatalf("after the restart of all members: %v %q", err, out)
	}
	if out := a.step("snapshot save"); !strings.Contains(out, "Snapshot saved") {
		s.Fatalf("the backup says\n%s", out)
	}
	volume := s.volume("data-etcd-1").Name
	a.step("member remove")
	s.volumeGone(volume)
	a.step("endpoint health")
	a.done()
	s.Eventually("the new member has the data", harness.Patience, func() string {
		if out, err := etcdctl("etcd-1", "get", "kept", "--print-value-only", "--consistency=s"); err != nil || out != "42" {
			return fmt.Sprint(err, out)
		}
		return ""
	})
	if out, err = etcdctl("etcd-0", "member", "list"); err != nil || strings.Count(out, ", started, ") != 3 {
		s.Fatalf("%v: the members are\n%s", err, out)
	}
	a.end("etcd")
}

// Proves: K1.
func quotaExample(s *scenario) {
	text, err := os.ReadFile(filepath.Join(harness.Root, "deploy/examples/gitops/quota.yaml"))
	s.Must(err)
	s.Apply(strings.Replace(string(text), "requests.storage: 100Gi", "requests.storage: 100Mi", 1))
	s.Eventually("the quota counts", harness.Patience, func() string {
		quota, err := harness.Client.CoreV1().ResourceQuotas(s.Namespace).Get(s.ctx(), "rootcellar", metav1.GetOptions{})
		if err != nil || len(quota.Status.Hard) != len(quota.Spec.Hard) {
			return fmt.Sprint(err, quota.Status)
		}
		return ""
	})
	s.Claim("first", "rootcellar", "64Mi")
	for class, refusal := range map[string]string{
		"rootcellar":       "rootcellar.storageclass.storage.k8s.io/requests.storage=64Mi, used: ",
		"rootcellar-image": "rootcellar-image.storageclass.storage.k8s.io/requests.storage=64Mi, used: ",
	} {
		_, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(s.ctx(), harness.NewClaim("second", class, "64Mi"), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "exceeded quota: rootcellar") || !strings.Contains(err.Error(), refusal) {
			s.Fatalf("a claim of class %s: %v", class, err)
		}
	}
	s.Claim("other", s.Class(map[string]string{"pool": "default"}), "64Mi")
	s.deleteClaim("first")
	s.deleteClaim("other")
}
