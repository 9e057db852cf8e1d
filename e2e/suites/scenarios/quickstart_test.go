package scenarios

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// shellBlock is a block of commands in Markdown: for the administrator's machine, or, marked as in `sh node`, for a
// node.
var shellBlock = regexp.MustCompile("(?ms)^```sh(?: (\\S+))?\n(.*?)^```$")

// section is the part of a Markdown file below a heading. The file is relative to the repository, or absolute.
func (s *scenario) section(file, heading string) string {
	s.Helper()
	if !filepath.IsAbs(file) {
		file = filepath.Join(harness.Root, file)
	}
	text, err := os.ReadFile(file)
	s.Must(err)
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		s.Fatalf("%s has no section %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// yamlBlock is an object in Markdown.
var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// documentedClass creates the StorageClass that docs/classes.md shows, and a pod of the group it names.
//
// Proves: K1.
func documentedClass(s *scenario) {
	s.onFast()
	for _, block := range yamlBlock.FindAllStringSubmatch(s.section("docs/classes.md", "StorageClass"), -1) {
		s.Apply(block[1])
	}
	s.Cleanup(func() {
		_ = harness.Client.StorageV1().StorageClasses().Delete(context.Background(), "fast", metav1.DeleteOptions{})
	})
	s.Claim("data", "fast", "64Mi")
	s.pod("member", with("data", "/data"), as(1000))
	s.running("member")
	s.says("member", "stat -c '%g %a' /data && echo kept > /data/file && cat /data/file", "1000 770\nkept")
	s.says("member", "grep -c ' /data .*nosuid,nodev.*noatime' /proc/mounts", "1")
	s.pod("stranger", with("data", "/data"), as(2000))
	s.running("stranger")
	s.refused("stranger", "cat /data/file", "Permission denied")
	volume := s.volume("data").Name
	s.deletePod("member")
	s.deletePod("stranger")
	s.deleteClaim("data")
	s.volumeGone(volume)
}

// quickStart runs the commands of the README's quick start exactly as they are written, with the archive of `make image`
// in place of the one that the blocks marked `sh image` build.
//
// Proves: K1.
func quickStart(s *scenario) {
	for _, n := range nodes() {
		// The image is removed first, to show that the quick start loads it.
		_, err := s.on(n, "ctr", "--address", n.containerd(), "--namespace", "k8s.io", "images", "rm", driverImage)
		s.Must(err)
	}
	copied := filepath.Join(harness.Run, "copied")
	for _, n := range nodes() {
		s.copied(n, filepath.Join(target, "image/rootcellar-"+chartVersion+"-"+runtime.GOARCH+".tar"), filepath.Join(copied, "rootcellar.tar"))
	}
	var said strings.Builder
	for _, block := range shellBlock.FindAllStringSubmatch(s.section("README.md", "Quick start"), -1) {
		switch block[1] {
		case "image":
		case "node":
			for _, n := range nodes() {
				out, err := s.on(n, "env", "CONTAINERD_ADDRESS="+n.containerd(), "sh", "-euc", "cd "+copied+"\n"+block[2])
				s.Must(err)
				said.WriteString(out)
			}
		default:
			said.WriteString(s.administrator(harness.Root, block[2]))
		}
		if file := os.Getenv("PICTURE"); file != "" && strings.Contains(block[2], "/volumes") {
			s.picture(file)
		}
	}
	for _, want := range []string{"successfully rolled out", "pod/cellar condition met", "default_cellar_pvc-", `release "rootcellar" uninstalled`} {
		if !strings.Contains(said.String(), want) {
			s.Errorf("the quick start does not print %q; it printed:\n%s", want, said.String())
		}
	}
	s.uninstalled("default")
}

// uninstalled checks that the driver and the volumes of these pools are removed.
func (s *scenario) uninstalled(pools ...string) {
	s.Helper()
	_, err := harness.Client.CoreV1().Namespaces().Get(s.ctx(), harness.System, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		s.Errorf("after the uninstall the namespace is still there: %v", err)
	}
	for _, n := range nodes() {
		for _, pool := range pools {
			if left := s.directories(n, pool, ""); len(left) > 0 {
				s.Errorf("left in pool %s on %s: %q", pool, n.name, left)
			}
		}
	}
}

// chartVersion is that of the chart, and of all that is built with it.
var chartVersion = func() string {
	text, err := os.ReadFile(filepath.Join(harness.Root, "deploy/chart/Chart.yaml"))
	if err != nil {
		panic(err)
	}
	_, found, _ := strings.Cut(string(text), "\nversion: ")
	found, _, _ = strings.Cut(found, "\n")
	return found
}()

// driverImage is the driver's image under the name in the chart.
var driverImage = "registry.example/rootcellar:" + chartVersion

// publish pushes the image and the chart to the cluster's registry, which stands for the published ones.
func (s *scenario) publish() {
	s.Helper()
	packages := filepath.Join(harness.Run, "chart")
	for _, arguments := range [][]string{
		{"crane", "push", filepath.Join(target, "image/rootcellar-"+chartVersion+"-"+runtime.GOARCH+".tar"), driverImage},
		{"helm", "package", filepath.Join(harness.Root, "deploy/chart"), "--destination", packages},
		{"helm", "push", filepath.Join(packages, "rootcellar-"+chartVersion+".tgz"), "oci://registry.example/charts"},
	} {
		_, err := s.shell(arguments[0], arguments[1:]...)
		s.Must(err)
	}
}

// administrator runs commands in a directory, such as a clone of the repository, as an administrator would.
func (s *scenario) administrator(dir, commands string) string {
	s.Helper()
	command := exec.CommandContext(s.ctx(), "sh", "-euc", commands)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		s.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}
