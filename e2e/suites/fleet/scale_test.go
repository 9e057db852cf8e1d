package fleet

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"rootcellar.dev/e2e/suites/harness"
	"rootcellar.dev/e2e/suites/measure"
)

// The size of the cluster, of which the first nodes have a driver and a csi-provisioner, and the others watch as one does.
var (
	fleetNodes  = measure.Number("FLEET_NODES", 1000)
	realNodes   = measure.Number("REAL_NODES", 3)
	fleetVolume = cmp.Or(os.Getenv("FLEET_VOLUMES"), "10000 30000 100000")
)

const (
	// comings is the number of volumes that are made and deleted, and of pods that are scheduled.
	comings = 100
	// claiming is the number of pods with a claim that are scheduled, which takes the scheduler seconds for each.
	claiming = 20
	// lateClass is the class of the chart's whose claims wait for a pod.
	lateClass = "rootcellar"
	// idle is the time for which an idle cluster is watched.
	idle = time.Minute
	// slowly is the time for which work at this size may take.
	slowly = 20 * time.Minute
)

// scale is the measured cluster.
type scale struct {
	*scenario
	real []*machine
	// nodes are the names of all nodes.
	nodes    []string
	watchers *watchers
	// server and controllers are processes of the control plane.
	server      int
	controllers *process
	// volumes is the number of bound claims that nobody touches.
	volumes int
	// modelClaim and modelVolume are a bound pair as the sidecars leave it.
	modelClaim  *corev1.PersistentVolumeClaim
	modelVolume *corev1.PersistentVolume
	rows        strings.Builder
}

// TestScale is no scenario. It measures, and leaves the rows of benches/results/scale.tsv.
func TestScale(t *testing.T) {
	t.Cleanup(harness.Count)
	title := fmt.Sprintf("the price of %d nodes with %s volumes", fleetNodes, fleetVolume)
	t.Run(title, func(t *testing.T) { play(t, entry{title, measureScale}, "scale") })
}

func measureScale(s *scenario) {
	c := &scale{scenario: s, server: processOf("kube-apiserver")}
	defer func() { s.Must(os.WriteFile(filepath.Join(harness.Run, "scale.rows"), []byte(c.rows.String()), 0o644)) }()
	s.install()
	rig.fleet = newProxy("fleet")
	c.startControllers()
	c.addNodes()
	c.model()
	for i, size := range strings.Fields(fleetVolume) {
		c.fill(size)
		c.startOfProvisioner()
		for _, m := range c.real[1:] {
			c.provision(m)
		}
		// The rates depend on the number of nodes, and take many minutes.
		if i == 0 {
			c.startWatchers()
			c.idle()
			c.comeAndGo()
			c.schedule("scoring on", true, 0)
			c.schedule("scoring off", false, 0)
			c.schedule("percentageOfNodesToScore 10", true, 10)
			c.watchers.stop()
		}
		c.row("API server: memory, MiB", usageOf(c.server).resident)
		c.startOfController()
		c.stopRest()
	}
}

func (c *scale) row(figure string, value float64) {
	line := fmt.Sprintf("%d\t%d\t%s\t%.*f\n", fleetNodes, c.volumes, figure, map[bool]int{true: 0, false: 2}[value >= 100], value)
	fmt.Print(line)
	c.rows.WriteString(line)
}

// startControllers starts the controller manager. While claims and volumes are made by hand, it is off.
func (c *scale) startControllers() {
	c.controllers = launch("kube-controller-manager", nil, "kube-controller-manager", "--kubeconfig="+os.Getenv("KUBECONFIG"),
		"--service-account-private-key-file="+filepath.Join(harness.Run, "pki/sa.key"), "--root-ca-file="+filepath.Join(harness.Run, "pki/apiserver.crt"),
		"--use-service-account-credentials=true", "--leader-elect=false",
		"--controllers=*,-node-lifecycle-controller,-taint-eviction-controller")
}

// provision starts csi-provisioner without a proxy, with the arguments of the chart.
func (c *scale) provision(m *machine, env ...string) {
	m.provisioning = &proxy{config: os.Getenv("KUBECONFIG")}
	m.startProvisionerIn(env, "--v=1")
}

// addNodes adds all nodes. The capacities of those without a driver are never written again.
func (c *scale) addNodes() {
	c.Helper()
	for i := range realNodes {
		m := c.machine(fmt.Sprint("real", i+1), "3G")
		m.startDriver()
		m.register(c.scenario)
		c.provision(m)
		m.reports(c.scenario, lateClass)
		c.real = append(c.real, m)
		c.nodes = append(c.nodes, m.name)
	}
	classes, err := harness.Client.StorageV1().StorageClasses().List(c.Context(), metav1.ListOptions{})
	c.Must(err)
	var adding group
	for i := range fleetNodes - realNodes {
		name := fmt.Sprint("watcher", i+1)
		c.nodes = append(c.nodes, name)
		adding.run(func() { c.addWatcher(name, classes.Items) })
	}
	adding.Wait()
}

// addWatcher adds the objects of a node.
func (c *scale) addWatcher(name string, classes []storagev1.StorageClass) {
	c.node(name, map[string]string{harness.TopologyKey: name}, nil, hardware(name))
	(&machine{name: name}).registerDriver(c.scenario)
	for _, class := range classes {
		size := resource.MustParse("100Gi")
		_, err := harness.Client.StorageV1().CSIStorageCapacities(harness.System).Create(c.Context(), &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csisc-", Labels: map[string]string{
				"csi.storage.k8s.io/drivername": harness.Driver, "csi.storage.k8s.io/managed-by": "external-provisioner-" + name}},
			NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{harness.TopologyKey: name}},
			StorageClassName: class.Name, Capacity: &size, MaximumVolumeSize: &size,
		}, metav1.CreateOptions{})
		c.Must(err)
	}
}

// model makes a claim and its volume, and keeps both as they are when all components have done their work.
func (c *scale) model() {
	c.Helper()
	m := c.real[0]
	c.claimFor("model", m.name)
	c.modelVolume = c.bound("model", m)
	c.modelClaim = c.TheClaim("model")
	c.stopRest()
}

// claimFor asks for a volume on this node.
func (c *scale) claimFor(name, node string, changes ...change) {
	c.Helper()
	c.claim(name, lateClass, append(changes, naming(node), ofSize("1Mi"))...)
}

// stopRest ends the programs that would react to half-made objects.
func (c *scale) stopRest() {
	c.uncontrol()
	for _, m := range c.real {
		m.provisioner.kill()
	}
	c.controllers.kill()
}

// fill makes claims and volumes as copies of the model up to this number, and then starts the controller manager.
func (c *scale) fill(size string) {
	c.Helper()
	until, err := strconv.Atoi(size)
	c.Must(err)
	begin := time.Now()
	var filling group
	for i := c.volumes; i < until; i++ {
		filling.run(func() { c.copy(i) })
	}
	filling.Wait()
	c.Logf("%d volumes more in %v", until-c.volumes, time.Since(begin))
	c.volumes = until
	c.startControllers()
}

// copy makes the claim and the volume of this number.
func (c *scale) copy(i int) {
	ctx := c.Context()
	claims, volumes := harness.Client.CoreV1().PersistentVolumeClaims(c.Namespace), harness.Client.CoreV1().PersistentVolumes()
	// Lists are compressed, so the names are as random as those of real volumes.
	uid, handle := string(uuid.NewUUID()), strings.ReplaceAll(string(uuid.NewUUID()), "-", "")
	claim, volume := c.modelClaim.DeepCopy(), c.modelVolume.DeepCopy()
	name := c.nodes[i%len(c.nodes)]
	claim.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprint("data-", i), Annotations: claim.Annotations, Finalizers: claim.Finalizers, ManagedFields: claim.ManagedFields}
	claim.Annotations[selected] = name
	claim.Spec.VolumeName = "pvc-" + uid
	claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	c.Must(err)
	claim.Status = c.modelClaim.Status
	_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	c.Must(err)
	volume.ObjectMeta = metav1.ObjectMeta{Name: claim.Spec.VolumeName, Annotations: volume.Annotations, Finalizers: volume.Finalizers, ManagedFields: volume.ManagedFields}
	volume.Spec.ClaimRef.Name, volume.Spec.ClaimRef.UID = claim.Name, claim.UID
	volume.Spec.CSI.VolumeHandle = volume.Spec.CSI.VolumeHandle[:len(volume.Spec.CSI.VolumeHandle)-len(handle)] + handle
	volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{name}
	volume, err = volumes.Create(ctx, volume, metav1.CreateOptions{})
	c.Must(err)
	volume.Status = c.modelVolume.Status
	_, err = volumes.UpdateStatus(ctx, volume, metav1.UpdateOptions{})
	c.Must(err)
}

// startOfProvisioner measures a csi-provisioner from its start until it has served a claim: as the Go runtime collects
// its garbage by default, and with a limit for its memory.
func (c *scale) startOfProvisioner() {
	c.Helper()
	m := c.real[0]
	for _, limit := range []string{"none", "230MiB"} {
		name := fmt.Sprintf("first-of-%d-%s", c.volumes, strings.ToLower(limit))
		c.claimFor(name, m.name)
		before, begin := usageOf(c.server), time.Now()
		m.provisioner.kill()
		c.provision(m, "GOMEMLIMIT="+strings.Replace(limit, "none", "off", 1))
		c.Eventually("claim "+name+" is bound", slowly, func() string {
			if phase := c.TheClaim(name).Status.Phase; phase != corev1.ClaimBound {
				return string(phase)
			}
			return ""
		})
		usage, of := usageOf(m.provisioner.Process.Pid), "csi-provisioner, GOMEMLIMIT "+limit
		c.row(of+": start until it has served a claim, s", time.Since(begin).Seconds())
		c.row(of+": received at its start, MB", usage.received/1e6)
		c.row(of+": peak of its memory, MiB", usage.peak)
		c.row(of+": CPU for its start, s", usage.cpu)
		c.row(of+": CPU of the API server for its start, s", usageOf(c.server).cpu-before.cpu)
	}
}

func (c *scale) startWatchers() {
	c.Helper()
	c.watchers = newWatchers(c.Context())
	begin := time.Now()
	for _, node := range c.nodes[realNodes:] {
		c.Must(c.watchers.start(node))
	}
	c.Logf("%d watchers in %v", len(c.nodes)-realNodes, time.Since(begin))
	c.row("API server: memory with all watchers, MiB", usageOf(c.server).resident)
}

func (c *scale) writes() float64 {
	c.Helper()
	writes, err := etcdWrites(c.Context())
	c.Must(err)
	return writes
}

// rates measures a piece of work.
func (c *scale) rates(of string, times float64, work func()) {
	c.Helper()
	before, seen, writes := usageOf(c.server), c.watchers.seen(), c.writes()
	work()
	if err := c.watchers.failed.Load(); err != nil {
		c.Fatal(*err)
	}
	after, now := usageOf(c.server), c.watchers.seen()
	c.row(of+": events to each node", float64(now.events-seen.events)/float64(fleetNodes-realNodes)/times)
	c.row(of+": sent to all nodes, MB", float64(now.bytes-seen.bytes)*float64(fleetNodes)/float64(fleetNodes-realNodes)/times/1e6)
	c.row(of+": CPU of the API server, s", (after.cpu-before.cpu)/times)
	c.row(of+": writes to etcd", (c.writes()-writes)/times)
}

func (c *scale) idle() {
	c.rates("an idle second", idle.Seconds(), func() { time.Sleep(idle) })
}

// comeAndGo makes and deletes volumes on the real nodes.
func (c *scale) comeAndGo() {
	c.Helper()
	names := make([]string, comings)
	var seconds []float64
	c.rates("a volume made", comings, func() {
		began, bound := map[string]time.Time{}, map[string]bool{}
		for i := range names {
			names[i] = fmt.Sprintf("come-%d-%d", c.volumes, i)
			began[names[i]] = time.Now()
			c.claimFor(names[i], c.real[i%realNodes].name, func(claim *corev1.PersistentVolumeClaim) {
				claim.Labels = map[string]string{"come": fmt.Sprint(c.volumes)}
			})
		}
		c.Eventually("all claims are bound", slowly, func() string {
			claims, err := harness.Client.CoreV1().PersistentVolumeClaims(c.Namespace).List(c.Context(), metav1.ListOptions{LabelSelector: "come=" + fmt.Sprint(c.volumes)})
			c.Must(err)
			for _, claim := range claims.Items {
				if claim.Status.Phase == corev1.ClaimBound && !bound[claim.Name] {
					bound[claim.Name] = true
					seconds = append(seconds, time.Since(began[claim.Name]).Seconds())
				}
			}
			if len(bound) < comings {
				return fmt.Sprint(len(bound), " are")
			}
			return ""
		})
	})
	for _, percent := range []int{50, 99} {
		c.row(fmt.Sprintf("claim until Bound, of 100 at once: p%d, s", percent), measure.Percentile(seconds, percent))
	}
	c.rates("a volume deleted", comings, func() {
		for _, name := range names {
			c.Must(harness.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Delete(c.Context(), name, metav1.DeleteOptions{}))
		}
		c.Eventually("all are deleted", slowly, func() string {
			for _, m := range c.real {
				if left := m.directories(c.scenario, "default", "come"); len(left) > 0 {
					return fmt.Sprint(left)
				}
			}
			return ""
		})
	})
}

// schedule measures how fast claims get a node. The percentage is of the nodes that the scheduler compares; 0: its own.
func (c *scale) schedule(settings string, scoring bool, percentage int) {
	c.Helper()
	file := filepath.Join(harness.Run, "scheduler.yaml")
	c.Must(os.WriteFile(file, []byte(fmt.Sprintf(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
percentageOfNodesToScore: %d
clientConnection: {kubeconfig: %q, qps: 1000, burst: 2000}
`, percentage, os.Getenv("KUBECONFIG"))), 0o644))
	scheduler := launch("kube-scheduler", nil, "kube-scheduler", "--config", file, fmt.Sprint("--feature-gates=StorageCapacityScoring=", scoring), "--secure-port=0")
	defer scheduler.kill()
	for _, claims := range []bool{false, true} {
		kind, count := "without a claim", comings
		if claims {
			kind, count = "with a claim", claiming
		}
		name := func(i int) string {
			return fmt.Sprintf("pod-%d-%v-%d-%v-%d", c.volumes, scoring, percentage, claims, i)
		}
		ask := func(i int) {
			var names []string
			if claims {
				c.claim(name(i), lateClass, ofSize("1Mi"))
				names = []string{name(i)}
			}
			c.pod(name(i), names)
		}
		placed := func(i int) bool {
			if claims {
				return c.TheClaim(name(i)).Annotations[selected] != ""
			}
			return c.nodeOf(name(i)) != ""
		}
		wait := func(i int) {
			c.Eventually("pod "+name(i)+" has a node", slowly, func() string {
				if !placed(i) {
					return "it has none" + c.said("Pod", name(i))
				}
				return ""
			})
		}
		// The scheduler has read everything when the first has its node.
		ask(0)
		wait(0)
		before, begin := usageOf(scheduler.Process.Pid), time.Now()
		var asking group
		for i := range count {
			asking.run(func() { ask(i + 1) })
		}
		asking.Wait()
		for i := range count {
			wait(i + 1)
		}
		c.row(fmt.Sprintf("scheduler, %s: pods %s per second", settings, kind), float64(count)/time.Since(begin).Seconds())
		c.row(fmt.Sprintf("scheduler, %s: CPU for a pod %s, ms", settings, kind), (usageOf(scheduler.Process.Pid).cpu-before.cpu)*1000/float64(count))
		for i := range count + 1 {
			c.Must(harness.Client.CoreV1().Pods(c.Namespace).Delete(c.Context(), name(i), metav1.DeleteOptions{}))
			if claims {
				c.Must(harness.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Delete(c.Context(), name(i), metav1.DeleteOptions{}))
			}
		}
	}
}

// startOfController measures rootcellar-fleet with all its functions.
func (c *scale) startOfController() {
	c.Helper()
	begin := time.Now()
	c.control(losing...)
	c.Eventually("the controller has read the cluster", slowly, func() string {
		if _, err := harness.Command(c.Context(), "curl", "--silent", "--fail", "http://127.0.0.1:9809/readyz"); err != nil {
			return err.Error()
		}
		return ""
	})
	c.row("controller: start until it is ready, s", time.Since(begin).Seconds())
	c.row("controller: peak of its memory, MiB", usageOf(rig.controller.Process.Pid).peak)
}

// group runs functions, some of them at once.
type group struct {
	sync.WaitGroup
	free chan struct{}
}

func (g *group) run(work func()) {
	if g.free == nil {
		g.free = make(chan struct{}, 32)
	}
	g.free <- struct{}{}
	g.Go(func() {
		defer func() { <-g.free }()
		work()
	})
}
