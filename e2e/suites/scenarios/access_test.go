package scenarios

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var access = []entry{
	{"the StorageClass of docs/classes.md, with its mode, group and mount options", documentedClass},
	{"a pod that is not root writes, and its fsGroup owns what it writes", fsGroupOwns},
	{"a class's mode, uid and gid let in whom they say and no stranger", strangersStayOut},
	{"two pods share a claim on one node, and what is mounted read-only refuses every write", readOnlyRefuses},
	{"a pod sees its subPath, and nothing beside or above it", subPathConfines},
	{"a ReadWriteOncePod claim is one pod's, and the next one's when that is gone", onePodAtATime},
	{"the mount options of a class bind its pods", mountOptionsBind},
}

// as runs the pod as a user other than root.
func as(uid int64, groups ...int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		yes := true
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{
			RunAsUser: &uid, RunAsGroup: &uid, RunAsNonRoot: &yes, SupplementalGroups: groups,
		}
	}
}

func fsGroup(gid int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.SecurityContext.FSGroup = &gid }
}

// Proves: P4.
func fsGroupOwns(s *scenario) {
	class := s.Class(map[string]string{"mode": "0700"})
	s.Claim("data", class, "16Mi")
	s.pod("first", with("data", "/data"), as(1000), fsGroup(2000))
	s.running("first")
	s.says("first", "stat -c '%u:%g %a' /data", "0:2000 2770")
	s.says("first", "echo kept > /data/file && stat -c '%u:%g' /data/file", "1000:2000")
	s.says("first", "mkdir /data/dir && stat -c '%u:%g %a' /data/dir", "1000:2000 2755")

	// Another user with the group shares the volume. A user without the group has no access.
	s.pod("second", with("data", "/data"), as(1001), fsGroup(2000))
	s.running("second")
	s.says("second", "cat /data/file && echo too > /data/other && stat -c '%u:%g' /data/other", "kept\n1001:2000")
	s.pod("stranger", with("data", "/data"), as(1002))
	s.running("stranger")
	s.refused("stranger", "cat /data/file", "Permission denied")
	s.refused("stranger", "echo no > /data/stranger", "Permission denied")
}

// Proves: P4.
func strangersStayOut(s *scenario) {
	cases := []struct {
		name       string
		parameters map[string]string
		status     string
		member     func(*corev1.Pod)
		stranger   func(*corev1.Pod)
	}{
		{"mode", map[string]string{"mode": "0750"}, "0:0 750", func(*corev1.Pod) {}, as(1000)},
		{"uid", map[string]string{"mode": "0700", "uid": "1000"}, "1000:0 700", as(1000), as(1001)},
		{"gid", map[string]string{"mode": "2770", "gid": "4321"}, "0:4321 2770", as(1000, 4321), as(1000, 4322)},
		{"default", nil, "0:0 777", as(1000), nil},
	}
	for _, c := range cases {
		s.Claim(c.name, s.Class(c.parameters), "16Mi")
		s.pod(c.name+"-member", with(c.name, "/data"), c.member)
		if c.stranger != nil {
			s.pod(c.name+"-stranger", with(c.name, "/data"), c.stranger)
		}
	}
	for _, c := range cases {
		s.running(c.name + "-member")
		s.says(c.name+"-member", "stat -c '%u:%g %a' /data", c.status)
		s.says(c.name+"-member", "echo mine > /data/file && cat /data/file", "mine")
		if c.stranger != nil {
			s.running(c.name + "-stranger")
			s.refused(c.name+"-stranger", "ls /data", "Permission denied")
			s.refused(c.name+"-stranger", "echo no > /data/stranger", "Permission denied")
		}
	}
}

// readOnlyRefuses runs a writer and readers on the one node of a ReadWriteOnce claim.
//
// Proves: M1.
func readOnlyRefuses(s *scenario) {
	s.Claim("data", "rootcellar", "16Mi")
	s.pod("writer", with("data", "/data"))
	s.running("writer")
	s.says("writer", "echo one > /data/file && cat /data/file", "one")
	s.pod("mount", with("data", "/data", func(mount *corev1.VolumeMount) { mount.ReadOnly = true }))
	s.pod("source", with("data", "/data"), func(pod *corev1.Pod) {
		pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	})
	writes := []string{"touch /data/new", "echo two > /data/file", "rm /data/file", "mkdir /data/dir", "chmod 700 /data"}
	for _, reader := range []string{"mount", "source"} {
		s.running(reader)
		s.says(reader, "grep -c ' /data .* ro[, ]' /proc/mounts", "1")
		for _, line := range writes {
			s.refused(reader, line, "Read-only file system")
		}
	}
	s.says("writer", "echo two > /data/file && ls /data", "file")
	for _, reader := range []string{"mount", "source"} {
		s.says(reader, "cat /data/file", "two")
	}
}

func subPath(path string) func(*corev1.VolumeMount) {
	return func(mount *corev1.VolumeMount) { mount.SubPath = path }
}

// Proves: M5.
func subPathConfines(s *scenario) {
	s.Claim("data", "rootcellar", "16Mi")
	s.pod("left", with("data", "/data", subPath("left")))
	s.pod("right", with("data", "/data", subPath("right/deep")))
	s.pod("whole", with("data", "/data"))
	for _, name := range []string{"left", "right", "whole"} {
		s.running(name)
	}
	s.says("left", "echo left > /data/file && ls /data", "file")
	s.says("right", "ls -A /data", "")
	s.says("whole", "cat /data/left/file && ls /data/right", "left\ndeep")

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dots"}, Spec: sleeper()}
	with("data", "/data", subPath("left/../.."))(pod)
	_, err := harness.Client.CoreV1().Pods(s.Namespace).Create(s.ctx(), pod, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "must not contain '..'") {
		s.Fatalf("a subPath with dots: %v", err)
	}
	// A link that a pod made leads another pod to a path inside the volume only.
	s.says("whole", "cd /data && ln -s left within && ln -s / root && ln -s ../../../../.. up && ls",
		"left\nright\nroot\nup\nwithin")
	s.pod("within", with("data", "/data", subPath("within")))
	s.running("within")
	s.says("within", "cat /data/file", "left")
	for _, link := range []string{"root", "up"} {
		s.pod(link, with("data", "/data", subPath(link)))
		s.event("Pod", link, "failed to prepare subPath")
	}
}

// Proves: A3.
func onePodAtATime(s *scenario) {
	s.Claim("data", "rootcellar", "16Mi", mode(corev1.ReadWriteOncePod))
	s.pod("first", with("data", "/data"))
	home := s.runningOn("first")
	s.says("first", "echo mine > /data/file && cat /data/file", "mine")
	s.pod("second", with("data", "/data"))
	s.unscheduled("second", "ReadWriteOncePod")
	// Kubelet itself refuses a pod that bypasses the scheduler.
	s.pod("sneak", with("data", "/data"), func(pod *corev1.Pod) { pod.Spec.NodeName = home.name })
	s.event("Pod", "sneak", "ReadWriteOncePod")
	s.deletePod("sneak")

	s.deletePod("first")
	s.running("second")
	s.says("second", "cat /data/file", "mine")
}

// Proves: M1.
func mountOptionsBind(s *scenario) {
	bound := s.Class(nil, func(class *storagev1.StorageClass) {
		class.MountOptions = []string{"noexec", "nosuid", "nodev", "noatime", "nosymfollow"}
	})
	s.Claim("bound", bound, "16Mi")
	s.Claim("free", "rootcellar", "16Mi")
	for _, name := range []string{"bound", "free"} {
		s.pod(name, with(name, "/data"))
		s.running(name)
		s.says(name, `cd /data && printf '#!/bin/sh\necho ran\n' > script && chmod +x script && sh script`, "ran")
		s.says(name, "cd /data && ln -s script link && mknod null c 1 3 && ls", "link\nnull\nscript")
	}
	s.says("free", "/data/script && cat /data/null && cat /data/link | wc -l", "ran\n2")
	s.refused("bound", "/data/script", "Permission denied")
	s.refused("bound", "cat /data/null", "Permission denied")
	s.refused("bound", "cat /data/link", "Too many levels of symbolic links")
	for _, option := range []string{"noexec", "nosuid", "nodev", "noatime", "nosymfollow"} {
		s.says("bound", "grep ' /data ' /proc/mounts | grep -cw "+option, "1")
		s.says("free", "grep ' /data ' /proc/mounts | grep -cw "+option+"; true", "0")
	}
}
