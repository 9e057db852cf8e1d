package scenarios

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// databases run on a cluster of their own, by `make e2e-databases`, which has the image of debian.sh.
var databases = []entry{
	{"a PostgreSQL under load recovers from each snapshot of its image, with every acknowledged insert", databaseOnImage},
	{"a snapshot of an image is of one instant, and one of a directory beside it is not", oneInstant},
	{"a running PostgreSQL is backed up to another machine and restored on another node, as docs/backup.md has it", backUp},
	{"a volume is backed up to S3 and restored on another node, as docs/backup.md has it", backUpToS3},
	{"the PostgreSQL of the examples keeps its data, as docs/applications.md has it", postgresExample},
	{"the etcd of the examples replaces a member that lost its data, as docs/applications.md has it", etcdExample},
	{"a virtual machine boots from a block volume, finds its writes after another boot, and so does one from a snapshot", machineOnBlock},
}

func TestDatabases(t *testing.T) {
	t.Cleanup(harness.Count)
	(&scenario{harness.In(t, metav1.NamespaceDefault)}).install()
	for _, entry := range databases {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
}

const debian = "debian:12"

// serve starts a PostgreSQL, on the data that it finds. Small segments of the log leave space for snapshots. With few
// buffers, tables are written all the time.
const serve = `[ -e /data/postgres/PG_VERSION ] || initdb --pgdata /data/postgres --username postgres --auth trust \
	--locale C --encoding UTF8 --data-checksums --wal-segsize 1 || exit 1
exec postgres -D /data/postgres -k /tmp -c listen_addresses= -c min_wal_size=8MB -c max_wal_size=32MB \
	-c shared_buffers=1MB -c recovery_init_sync_method=syncfs`

// load runs pgbench and one checkpoint after another, and inserts numbers. A number is acknowledged when its insert has
// returned.
const load = `set -e
psql -qc 'create table inserts (n integer primary key)'
pgbench --initialize --quiet --scale 2
(pgbench --client 4 --time 3600 >/tmp/pgbench 2>&1 &)
(while psql -qc checkpoint; do usleep 100000; done >/tmp/checkpoints 2>&1 &)
(
	n=0
	while n=$((n + 1)) && psql -qc "insert into inserts values ($n)"; do
		echo $n >/tmp/new && mv /tmp/new /tmp/acknowledged
	done
) >/tmp/inserts 2>&1 &`

// postgres makes a pod serve the data below /data. It ends with its PostgreSQL.
func postgres(pod *corev1.Pod) {
	nobody := int64(65534)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	main := &pod.Spec.Containers[0]
	main.Image, main.Command = debian, []string{"/bin/sh", "-c", serve}
	main.SecurityContext = &corev1.SecurityContext{RunAsUser: &nobody, RunAsGroup: &nobody}
	main.Env = []corev1.EnvVar{
		{Name: "PATH", Value: "/usr/lib/postgresql/15/bin:/usr/bin:/bin"},
		{Name: "PGHOST", Value: "/tmp"},
		{Name: "PGUSER", Value: "postgres"},
		{Name: "PGDATABASE", Value: "postgres"},
	}
}

// database is a PostgreSQL under load, the only replica of a StatefulSet.
type database struct {
	*scenario
	class string
}

// moment is a snapshot, and the last insert that was acknowledged before and after it was taken.
type moment struct {
	snapshot      string
	before, after int
}

const (
	databasePod, databaseClaim = "database-0", "data-database-0"
	databaseSize               = "320Mi"
)

func (s *scenario) database(class string) *database {
	s.Helper()
	pod := &corev1.Pod{Spec: sleeper()}
	postgres(pod)
	at(node1)(pod)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	labels := map[string]string{"app": "database"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "database"},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: &class,
					AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(databaseSize)},
					},
				},
			}},
		},
	}
	_, err := harness.Client.AppsV1().StatefulSets(s.Namespace).Create(s.ctx(), set, metav1.CreateOptions{})
	s.Must(err)
	d := &database{s, class}
	s.Eventually("PostgreSQL serves", harness.Patience, func() string {
		if out, err := s.exec(databasePod, "pg_isready"); err != nil {
			return out
		}
		return ""
	})
	_, err = s.exec(databasePod, load)
	s.Must(err)
	return d
}

// acknowledged waits for this many more inserts, and returns the last one that was acknowledged.
func (d *database) acknowledged(more int) int {
	d.Helper()
	first, last := -1, 0
	d.Eventually("PostgreSQL acknowledges inserts", harness.Patience, func() string {
		text, err := d.exec(databasePod, "cat /tmp/acknowledged")
		if err != nil {
			return text
		}
		last, err = strconv.Atoi(text)
		d.Must(err)
		if first < 0 {
			first = last
		}
		if last < first+more {
			return fmt.Sprintf("%d after %d", last, first)
		}
		return ""
	})
	return last
}

// snapshots takes snapshots with some load between them.
func (d *database) snapshots(count int) []moment {
	d.Helper()
	var moments []moment
	for i := range count {
		now := moment{snapshot: fmt.Sprint("taken", i), before: d.acknowledged(20)}
		d.take(now.snapshot, databaseClaim)
		now.after = d.acknowledged(0)
		moments = append(moments, now)
	}
	d.acknowledged(20)
	return moments
}

// outcome restores a snapshot and starts a PostgreSQL on it. It returns a complaint about its start or its data, or
// nothing.
func (d *database) outcome(m moment) string {
	d.Helper()
	name := "of-" + m.snapshot
	d.Claim(name, d.class, databaseSize, from("VolumeSnapshot", m.snapshot))
	d.pod(name, with(name, "/data"), at(node1), postgres)
	defer d.deleteSnapshotAndClaims(m.snapshot, name)
	var phase string
	d.Eventually("PostgreSQL of "+name+" serves or ends", harness.Patience, func() string {
		if phase = d.field("pod", name, ".status.phase"); phase == string(corev1.PodFailed) {
			return ""
		}
		if out, err := d.exec(name, "pg_isready"); err != nil {
			return out
		}
		return ""
	})
	log := d.Kubectl("logs", name)
	if phase == string(corev1.PodFailed) {
		reasons := regexp.MustCompile("(PANIC|FATAL): .*").FindAllString(log, -1)
		return "it does not start: " + strings.Join(reasons[max(0, len(reasons)-1):], "")
	}
	if !strings.Contains(log, "automatic recovery in progress") {
		return "it recovers from nothing"
	}
	return d.complaint(name, m)
}

// complaint checks the data of a PostgreSQL that recovered from a snapshot.
func (d *database) complaint(name string, m moment) string {
	d.Helper()
	ask := func(query string) string {
		text, err := d.exec(name, fmt.Sprintf("psql -Atc '%s' 2>&1", query))
		if err != nil {
			return "it does not answer: " + text
		}
		return text
	}
	last, err := strconv.Atoi(ask("select max(n) from inserts having count(*) = max(n)"))
	if err != nil {
		return fmt.Sprint("inserts are missing: ", ask("select count(*), max(n) from inserts"))
	}
	if last < m.before || last > m.after+1 {
		return fmt.Sprintf("the last insert is %d, and %d was acknowledged before the snapshot and %d after it", last, m.before, m.after)
	}
	sums := ask(`select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
		(select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)`)
	if parts := strings.Split(sums, "|"); len(parts) != 4 || slices.ContainsFunc(parts, func(sum string) bool { return sum != parts[0] }) {
		return "transactions are in part: " + sums
	}
	if out, err := d.exec(name, "pg_amcheck --all --heapallindexed --install-missing 2>&1"); err != nil || out != "" {
		return "pg_amcheck: " + out
	}
	if text := ask("insert into inserts select max(n) + 1 from inserts returning n"); !strings.HasPrefix(text, strconv.Itoa(last+1)) {
		return "it takes no insert: " + text
	}
	return ""
}

func (d *database) delete() {
	d.Helper()
	d.Kubectl("delete", "statefulset", "database", "--timeout", harness.Patience.String())
	d.gone("pod "+databasePod, func() error {
		_, err := harness.Client.CoreV1().Pods(d.Namespace).Get(d.ctx(), databasePod, metav1.GetOptions{})
		return err
	})
	d.deleteClaim(databaseClaim)
}

// Proves: I3.
func databaseOnImage(s *scenario) {
	for _, format := range []string{"ext4", "xfs"} {
		class := s.Class(map[string]string{"pool": "reflink", "kind": "image", "csi.storage.k8s.io/fstype": format})
		d := s.database(class)
		for _, moment := range d.snapshots(5) {
			if complaint := d.outcome(moment); complaint != "" {
				s.Fatalf("%s on %s: %s", moment.snapshot, format, complaint)
			}
		}
		s.Note += fmt.Sprintf("; %s: %d inserts", format, d.acknowledged(20))
		d.delete()
		s.detached()
	}
}

// counters makes five directories with 3000 files and a counter, and counts in one after the other without end. At any
// instant the counters differ by one at most, and with SYNC=sync those on the disk too.
const counters = `for d in 0 1 2 3 4; do
	mkdir /data/$d
	f=0
	while f=$((f + 1)) && [ $f -le 3000 ]; do echo $f >/data/$d/$f || exit 1; done
done
n=0
while n=$((n + 1)); do
	for d in 0 1 2 3 4; do printf %08d $n 1<>/data/$d/counter && $SYNC /data/$d/counter || exit 1; done
done`

// apart returns the greatest difference of the counters in a snapshot.
func (s *scenario) apart(claim, class string) int {
	s.Helper()
	s.take("taken", claim)
	s.Claim("copy", class, databaseSize, from("VolumeSnapshot", "taken"))
	s.pod("copy", with("copy", "/data"), at(node1))
	s.running("copy")
	text, err := s.exec("copy", "for d in 0 1 2 3 4; do cat /data/$d/counter; echo; done")
	s.Must(err)
	s.deleteSnapshotAndClaims("taken", "copy")
	var values []int
	for _, field := range strings.Fields(text) {
		value, err := strconv.Atoi(field)
		s.Must(err)
		values = append(values, value)
	}
	if len(values) != 5 {
		s.Fatalf("the counters are %v", values)
	}
	return slices.Max(values) - slices.Min(values)
}

// oneInstant needs no luck for the directory, because copying 15000 files takes longer than counting on. A PostgreSQL there
// may be lucky, so its recovery is only reported.
//
// Proves: I3.
func oneInstant(s *scenario) {
	parameters := map[string]string{"pool": "reflink"}
	directory := s.Class(parameters)
	parameters["kind"] = "image"
	for class, sync := range map[string]string{directory: "true", s.Class(parameters): "sync"} {
		s.Claim("source", class, databaseSize)
		s.pod("source", with("source", "/data"), at(node1), runs("SYNC="+sync+"\n"+counters))
		s.running("source")
		s.Eventually("it counts", harness.Patience, func() string {
			out, err := s.exec("source", "cat /data/4/counter")
			if err != nil {
				return out
			}
			return ""
		})
		for range 3 {
			switch difference := s.apart("source", class); {
			case class == directory && difference < 2:
				s.Fatalf("the counters of a directory differ by %d", difference)
			case class == directory:
				s.Note += fmt.Sprintf("; counters differ by %d", difference)
			case difference > 1:
				s.Fatalf("the counters of an image differ by %d", difference)
			}
		}
		s.deleteWithClaims("source")
		s.detached()
	}

	d := s.database(directory)
	// The copy reaches the log, the tables and the control file at different times.
	_, err := s.exec(databasePod, "for d in base global pg_wal; do mkdir /data/postgres/$d/other; f=0; "+
		"while f=$((f + 1)) && [ $f -le 5000 ]; do echo $f >/data/postgres/$d/other/$f || exit 1; done; done")
	s.Must(err)
	for _, moment := range d.snapshots(5) {
		complaint, _, _ := strings.Cut(cmp.Or(d.outcome(moment), "no damage is seen"), "\n")
		s.Note += "; PostgreSQL in a directory: " + complaint
	}
	d.delete()
	s.detached()
}

// block makes a claim one of a raw device.
func block(claim *corev1.PersistentVolumeClaim) {
	mode := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode = &mode
}

// machine makes a pod with qemu and the disk of debian.sh, and a claim as the device /dev/disk.
func machine(claim string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		raw(claim)(pod)
		pod.Spec.Containers[0].Image = debian
	}
}

// boots starts the machine and checks that it finds the traces of this many earlier starts.
func (s *scenario) boots(pod string, earlier int) {
	s.Helper()
	text, err := s.exec(pod, `timeout 300 qemu-system-x86_64 -accel tcg -m 256 -display none -nodefaults -no-reboot -serial stdio \
		-drive file=/dev/disk,format=raw,if=virtio,cache=none </dev/null 2>&1`)
	s.Must(err)
	if !holdsAll(text, []string{"Linux version ", "Debian", fmt.Sprintf("starts before this one: %d\r", earlier), "Power down"}) {
		s.Fatalf("not %d earlier starts:\n%s", earlier, text)
	}
}

// machineOnBlock emulates the processor, because a test machine may lack KVM.
//
// Proves: B1, B2.
func machineOnBlock(s *scenario) {
	class := s.Class(map[string]string{"pool": "reflink"})
	s.Claim("machine", class, "64Mi", block)
	s.pod("machine", machine("machine"), at(node1))
	s.running("machine")
	_, err := s.exec("machine", "dd if=/disk.img of=/dev/disk bs=1M conv=fsync")
	s.Must(err)
	s.boots("machine", 0)
	s.take("taken", "machine")
	s.boots("machine", 1)

	s.Claim("copy", class, "64Mi", block, from("VolumeSnapshot", "taken"))
	s.pod("copy", machine("copy"), at(node1))
	s.running("copy")
	s.boots("copy", 1)
	s.deletePod("machine")
	s.pod("machine", machine("machine"), at(node1))
	s.running("machine")
	s.boots("machine", 2)
	s.deleteSnapshotAndClaims("taken", "machine", "copy")
	s.detached()
}
