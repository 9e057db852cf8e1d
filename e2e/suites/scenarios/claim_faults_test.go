package scenarios

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// interrupt starts the move, acts as soon as a process of the copy receives, and waits for the end of the plan.
func (c *claimPlan) interrupt(act func(plan *exec.Cmd)) {
	c.Helper()
	// Those of the interruption before may still run.
	var before []string
	findProcess("/rootcellar-copy receive ", func(directory string) bool {
		before = append(before, directory)
		return false
	})
	var out bytes.Buffer
	plan := c.command("move")
	plan.Stdout, plan.Stderr = &out, &out
	plan.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Must(plan.Start())
	ended := make(chan error, 1)
	go func() { ended <- plan.Wait() }()
	c.Eventually("the copy receives", harness.Patience, func() string {
		select {
		case err := <-ended:
			c.Fatalf("the plan ended before: %v\n%s", err, &out)
		default:
		}
		if findProcess("/rootcellar-copy receive ", func(directory string) bool { return !slices.Contains(before, directory) }) == 0 {
			return "no process"
		}
		return ""
	})
	act(plan)
	if err := <-ended; err == nil {
		c.Fatalf("the plan succeeded:\n%s", &out)
	}
}

// killCopies kills each process of the program that copies.
func killCopies() {
	for {
		pid := findProcess("/rootcellar-copy ", func(string) bool { return true })
		if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
			return
		}
	}
}

// Proves: K1.
func copyInterrupted(s *scenario) {
	class := s.Class(map[string]string{"pool": "default"})
	s.Claim("data", class, "1Gi")
	s.pod("worker", with("data", "/data"), at(node2))
	s.running("worker")
	_, err := s.exec("worker", "dd if=/dev/urandom of=/data/large bs=1M count=400")
	s.Must(err)
	files := s.seed("worker")
	s.deletePod("worker")
	c := s.copies("data", "--node", node1.name)
	receives := func(string) bool { return true }
	c.interrupt(func(*exec.Cmd) {
		if pid := findProcess("/rootcellar-copy receive ", receives); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	c.interrupt(func(*exec.Cmd) { killCopies() })
	c.interrupt(func(*exec.Cmd) {
		s.Kubectl("delete", "pod", "--namespace", harness.System, "--selector", "rootcellar.dev/move", "--force", "--grace-period=0")
	})
	c.interrupt(func(*exec.Cmd) {
		back := s.kubeletLeaves()
		s.kill(node1, driverProcess)
		killCopies()
		back()
		s.driverReady()
	})
	// The programs in the pods do not end with the plan, and may complete the copy meanwhile.
	c.interrupt(func(plan *exec.Cmd) { s.Must(syscall.Kill(-plan.Process.Pid, syscall.SIGKILL)) })
	c.run("move")
	c.run("move")
	c.isAt(node1, class, "1Gi", corev1.PersistentVolumeReclaimDelete)
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
}

// copyAttacked lets a pod of a tenant answer on the port of the stream, and call the receiver, with another key.
//
// Proves: K1.
func copyAttacked(s *scenario) {
	class := s.Class(map[string]string{"pool": "default"})
	s.Claim("data", class, "64Mi")
	s.pod("worker", with("data", "/data"), at(node2))
	s.running("worker")
	files := s.seed("worker")
	s.deletePod("worker")
	c := s.copies("data", "--node", node1.name)
	for _, step := range copySteps[:3] {
		c.run("do", step)
	}
	addressOf := func(namespace, pod string) string {
		return s.Kubectl("get", "pod", pod, "--namespace", namespace, "--output", "jsonpath={.status.podIP}") + ":4807"
	}
	_, id, _ := strings.Cut(c.name(), "rootcellar-move-")
	image := s.driverPod(node1).Spec.Containers[0].Image
	end := func(arguments ...string) []string {
		return append(append([]string{"/rootcellar-copy"}, arguments...), "--id", id, "--key", "/key/key", "--wait", "600")
	}
	s.Apply("apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {key: " + strings.Repeat("0a", 32) + "}")
	key := corev1.Volume{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}}
	empty := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	s.pod("stranger", func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": "main"}
		mounts := []corev1.VolumeMount{{Name: "key", MountPath: "/key"}, {Name: "data", MountPath: "/data"}}
		pod.Spec.Volumes = []corev1.Volume{key, empty}
		main := &pod.Spec.Containers[0]
		main.VolumeMounts = mounts
		answers, calls := *main.DeepCopy(), *main.DeepCopy()
		answers.Name, answers.Image, answers.Command = "answers", image, end("receive", "/data", "--listen", "4807")
		calls.Name, calls.Image, calls.Command = "calls", image, end("send", "/key", "--connect", addressOf(harness.System, c.name()))
		pod.Spec.Containers = append(pod.Spec.Containers, answers, calls)
	})
	s.running("stranger")
	said, err := s.shell("kubectl", "--namespace", harness.System, "exec", c.name()+"-source", "--", "/rootcellar-copy", "send", "/source",
		"--id", id, "--connect", addressOf(s.Namespace, "stranger"), "--key", "/key/key", "--wait", "10")
	if err == nil || !strings.Contains(said, "exit code 75") {
		s.Fatalf("the sender: %v\n%s", err, said)
	}
	s.says("stranger", "ls -A /data", "")
	if said := c.run("do", "copy"); !strings.Contains(said, "directly from pod to pod") {
		s.Fatalf("the copy said\n%s", said)
	}
	for _, step := range copySteps[4:] {
		c.run("do", step)
	}
	if restarts := s.running("stranger").Status.ContainerStatuses; slices.ContainsFunc(restarts,
		func(status corev1.ContainerStatus) bool { return status.RestartCount > 0 }) {
		s.Fatalf("the stranger ended: %+v", restarts)
	}
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
}
