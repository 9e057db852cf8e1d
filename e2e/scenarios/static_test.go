package scenarios

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The steps of a plan for a mount that its provisioner discovers.
const (
	mountMove = iota + stepDrop
	mountDrop
	mountImport
	mountBind
	mountStart
	mountFinish
	mountRemove
)

// discover makes a PersistentVolume for the mount at the path as soon as there is none, as the static provisioner does.
// The end of the scenario ends it, and fails if it made one.
func (m *move) discover() {
	m.Helper()
	volumes := client.CoreV1().PersistentVolumes()
	again := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: m.old.Name, Annotations: m.old.Annotations},
		Spec:       *m.old.Spec.DeepCopy(),
	}
	again.Spec.ClaimRef = nil
	ctx, cancel := context.WithCancel(m.ctx())
	made := make(chan bool, 1)
	go func() {
		found := false
		for ctx.Err() == nil {
			_, unmounted := command(ctx, "nsenter", "-t", m.home.pid, "-m", "--", "mountpoint", "-q", m.path)
			if _, err := volumes.Get(ctx, m.old.Name, metav1.GetOptions{}); unmounted == nil && apierrors.IsNotFound(err) {
				_, err = volumes.Create(ctx, again, metav1.CreateOptions{})
				found = found || err == nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
		made <- found
	}()
	m.Cleanup(func() {
		cancel()
		if <-made {
			m.Errorf("the mount at %s was discovered again", m.path)
		}
	})
}

// fstab returns the mount points of the node's /etc/fstab below the old disk.
func (m *move) fstab() string {
	m.Helper()
	out, err := m.on(m.home, "awk", `$2 ~ "^`+oldDisk+`/" { print $2 }`, "/etc/fstab")
	m.must(err)
	return out
}

// staticDisk moves a mount that a stand-in for the static provisioner discovers, and goes back after each step.
//
// Proves: IM1, IM5.
func staticDisk(s *scenario) {
	f := foreign{"static", "fast-disks/vol1", "local", "",
		map[string]string{provisionedBy: "local-volume-provisioner-node1-8d6c1b2e"}, corev1.LabelHostname, nil}
	path := oldDisk + "/" + f.directory
	// Its directories have the sizes of those in the pool.
	_, err := s.on(node1, "sh", "-euc", "mkdir -p "+path+"; truncate -s 64M /mnt/static; mkfs.ext4 -q -b 4096 /mnt/static; "+
		"mount -o loop /mnt/static "+path+"; rmdir "+path+"/lost+found; echo '/mnt/static "+path+" ext4 loop' >>/etc/fstab")
	s.must(err)
	m := s.foreignVolume(f)
	s.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: static}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector: {matchLabels: {app: static}}
  template:
    metadata: {labels: {app: static}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "` + image + `", command: [/bin/sleep, "2147483647"], volumeMounts: [{name: data, mountPath: /data}]}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: static}}]
`)
	files := s.seed(s.userOf("static").Name)
	m.planned()
	m.discover()
	same := func() {
		s.Helper()
		s.sameData(s.userOf("static").Name, files)
		m.sameClaim()
	}
	back := func(last int) {
		s.Helper()
		for number := last; number >= 0; number-- {
			m.undoTwice(number)
		}
		same()
		was, is := m.old.Spec.DeepCopy(), s.volume("static").Spec.DeepCopy()
		was.ClaimRef.ResourceVersion, is.ClaimRef.ResourceVersion = "", ""
		if was.String() != is.String() || m.fstab() != path {
			s.Fatalf("after step %d and back, the PersistentVolume is\n%s\nand not\n%s\nand fstab has %s", last, is, was, m.fstab())
		}
	}
	drop := func() {
		s.Helper()
		_, err := s.inDriver(node1, "volume", "delete", m.id)
		s.must(err)
	}
	for last := range mountFinish + 1 {
		for number := range last + 1 {
			m.doTwice(number)
		}
		if last == mountMove {
			s.pod("early", with("static", "/data"))
			s.event("Pod", "early", "does not exist")
			s.deletePod("early")
		}
		if last >= mountStart {
			same()
		}
		back(last)
		switch {
		case last == mountImport:
			// The old volume may have new files, so the copy is not taken for it.
			for number := range mountImport {
				m.do(number)
			}
			if err := m.run(mountImport, actionDo); err == nil {
				s.Fatal("a mount that was writable again is not copied")
			}
			drop()
			m.do(mountImport)
			back(mountImport)
			drop()
		case last > mountImport && last < mountFinish:
			drop()
		}
	}
	m.rescueFiles(drop, back)
	same()
	if got := m.fstab(); got != "" {
		s.Fatalf("fstab has %s", got)
	}
	s.kubectl("delete", "deployment/static")
	s.unused("static")
	s.deleteClaim("static")
	s.volumeGone(m.old.Name)
}

// rescueFiles takes a file that a pod wrote after the move back by hand, and takes all steps then.
func (m *move) rescueFiles(drop func(), back func(int)) {
	m.Helper()
	drop()
	for number := range mountStart + 1 {
		m.do(number)
	}
	_, err := m.exec(m.userOf(m.claim).Name, "echo new >/data/new")
	m.must(err)
	back(mountStart)
	const rescued = oldDisk + "/rescued"
	m.onceSays(m.home, "is the directory "+rescued+" now", "volume", "export", m.id, "--to", rescued)
	if got := m.fileAt(filepath.Join(rescued, "new")); strings.TrimSpace(got) != "new" {
		m.Fatalf("the exported file has %q", got)
	}
	_, err = m.on(m.home, "rm", "-r", rescued)
	m.must(err)
	for number := range mountRemove + 1 {
		m.do(number)
	}
}
