package scenarios

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"rootcellar.dev/e2e/suites/harness"
)

// dist is the release that release.sh built and published.
var dist = os.Getenv("DIST")

// fleetImage is the controller's image under the name in the chart.
var fleetImage = "registry.example/rootcellar-fleet:" + chartVersion

// publishedChart is the chart in the registry.
var publishedChart = "registry.example/charts/rootcellar:" + chartVersion

// provenance is the file of dist/ that says what the release was built from.
var provenance = "rootcellar-" + chartVersion + ".provenance.json"

// imageBoms are the bills of materials of the images, in dist/.
var imageBoms = map[string]string{
	driverImage: "rootcellar-" + chartVersion + "-image.cdx.json",
	fleetImage:  "rootcellar-fleet-" + chartVersion + "-image.cdx.json",
}

// TestRelease installs a release with nothing but its files, on nodes that have no image of it.
func TestRelease(t *testing.T) {
	t.Cleanup(harness.Count)
	for _, entry := range []entry{
		{"a release is verified, installed, upgraded, rolled back and removed by its README", releaseReadme},
		{"what is attested is what dist/ has, also if it is published again", attestations},
		{"a changed or unsigned image is noticed", changedImage},
		{"the offline archive installs the driver without a registry", offline},
	} {
		if !t.Run(entry.title, func(t *testing.T) { play(t, entry) }) {
			return
		}
	}
}

// obey runs the blocks of a section of the release's README in a directory, and those for nodes on each node.
func (s *scenario) obey(section, dir string) {
	s.Helper()
	for _, block := range shellBlock.FindAllStringSubmatch(s.section(filepath.Join(dist, "README.md"), section), -1) {
		commands := strings.ReplaceAll(block[2], "amd64", runtime.GOARCH)
		// A version of its own would do more: the pods start again, and the controller's starts.
		commands = strings.ReplaceAll(commands, "--reset-then-reuse-values", "--reset-then-reuse-values --set log.level=debug,fleet.enabled=true")
		if block[1] == "" {
			s.administrator(dir, commands)
			continue
		}
		for _, n := range nodes() {
			_, err := s.on(n, "env", "CONTAINERD_ADDRESS="+n.containerd(), "sh", "-euc", "cd "+s.downloads()+"\n"+commands)
			s.Must(err)
		}
	}
}

func releaseReadme(s *scenario) {
	s.obey("Verify", dist)
	s.obey("Provenance", dist)
	s.programs()
	s.obey("Install", dist)
	images := s.administrator(dist, `{ cat install/*/rootcellar.yaml; helm get manifest rootcellar --namespace `+harness.System+`
kubectl --namespace kube-system get deployment snapshot-controller --output yaml; } | grep '^ *\(- \)\?image: ' | sort -u`)
	for image := range strings.Lines(images) {
		if !strings.Contains(image, "registry.example/") || !strings.Contains(image, "@sha256:") {
			s.Errorf("an image has no digest: %s", image)
		}
	}
	s.visits()
	before := s.driverPod(node1).UID
	s.obey("Upgrade and roll back", dist)
	var revisions []struct{ Status, Description string }
	s.Must(json.Unmarshal([]byte(s.administrator(dist, "helm history rootcellar --namespace "+harness.System+" --output json 2>/dev/null")), &revisions))
	if len(revisions) != 3 || revisions[2].Description != "Rollback to 1" {
		s.Errorf("the history of Helm is %v", revisions)
	}
	// Helm waited for its pod.
	repository, _, _ := strings.Cut(fleetImage, ":")
	if upgrade := s.administrator(dist, "helm get manifest rootcellar --namespace "+harness.System+" --revision 2"); !strings.Contains(upgrade, repository+"@sha256:") {
		s.Errorf("the upgrade has no controller with a digest:\n%s", upgrade)
	}
	if s.driverPod(node1).UID == before {
		s.Error("the driver's pod is the one before the upgrade")
	}
	s.visits()
	s.obey("Remove", dist)
	s.uninstalled("default")
}

// programs checks that the checksums and the bill of materials have the programs, and runs those of this architecture.
func (s *scenario) programs() {
	s.Helper()
	sums, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	s.Must(err)
	targets := s.administrator(dist, "jq --raw-output '.metadata.component.components[].name' rootcellar-"+chartVersion+".cdx.json")
	for _, program := range []string{"rootcellar", "rootcellar-migrate", "rootcellar-fleet"} {
		if !slices.Contains(strings.Fields(targets), program) {
			s.Errorf("the bill of materials lacks %s; it has\n%s", program, targets)
		}
	}
	for _, file := range []string{imageBoms[driverImage], imageBoms[fleetImage], "rootcellar-" + chartVersion + "-licenses.tar", provenance} {
		if !strings.Contains(string(sums), "  "+file+"\n") {
			s.Errorf("SHA256SUMS lacks %s:\n%s", file, sums)
		}
	}
	for _, file := range []string{"rootcellar-@-linux-*", "rootcellar-migrate-@-linux-*", "rootcellar-fleet-@-linux-*", "rootcellar-@-*.tar", "rootcellar-fleet-@-*.tar"} {
		for _, arch := range []string{"amd64", "arm64"} {
			if file := strings.NewReplacer("@", chartVersion, "*", arch).Replace(file); !strings.Contains(string(sums), "  "+file+"\n") {
				s.Errorf("SHA256SUMS lacks %s:\n%s", file, sums)
			}
		}
	}
	s.administrator(s.TempDir(), "tar -xf "+filepath.Join(dist, "rootcellar-"+chartVersion+"-manual.tar")+`
for program in rootcellar rootcellar-migrate; do
    grep -q '^\.SH NAME' "man/man1/$program.1"
    bash -c '. "completions/$1.bash" && complete -p "$1"' bash "$program"
done`)
	if out := s.administrator(dist, "PATH=$PWD:$PATH && kubectl rootcellar --help"); !strings.Contains(out, "kubectl rootcellar undelete") || !strings.Contains(string(sums), "  kubectl-rootcellar\n") {
		s.Errorf("the plugin prints %q, and the checksums are\n%s", out, sums)
	}
	for _, program := range []string{"rootcellar", "rootcellar-migrate", "rootcellar-fleet"} {
		if out := s.administrator(dist, "./"+program+"-"+chartVersion+"-linux-"+runtime.GOARCH+" --version"); out != program+" "+chartVersion+"\n" {
			s.Errorf("%s --version says %q", program, out)
		}
	}
}

// visits waits until the pod of the examples has written into its volume.
func (s *scenario) visits() {
	s.Helper()
	s.Eventually("the pod of the examples writes", harness.Patience, func() string {
		out, err := s.shell("kubectl", "exec", "cellar", "--", "cat", "/data/visits")
		if err != nil || out == "" {
			return "it has written " + out
		}
		return ""
	})
}

// attestations compares what is attested with dist/, publishes the release again, and compares again.
func attestations(s *scenario) {
	s.attested()
	out, err := s.makePublish()
	s.Must(err)
	if strings.Contains(out, "attesting") || strings.Contains(out, "signing") {
		s.Errorf("the second make publish signs or attests again: %s", out)
	}
	s.attested()

	// The statement is about this commit, and about the files and images of dist/.
	s.administrator(dist, `commit=$(git -C .. rev-parse HEAD)
jq --exit-status --arg commit "$commit" '.predicate.buildDefinition.resolvedDependencies | any(.digest.gitCommit == $commit)' `+provenance+`
jq --raw-output '.subject[] | select(.name | contains("/") | not) | "\(.digest.sha256)  \(.name)"' `+provenance+` | sha256sum --quiet --check
for image in `+driverImage+` `+fleetImage+`; do
    digest=$(crane digest "$image")
    jq --exit-status --arg image "$image" --arg digest "${digest#sha256:}" 'any(.subject[]; .name == $image and .digest.sha256 == $digest)' `+provenance+`
done`)
	// The bill of materials of an image has none of the programs and packages of the other.
	for image, wanted := range map[string]string{driverImage: "true false\n", fleetImage: "false true\n"} {
		out := s.administrator(dist, `jq --raw-output '[.components[].name] | "\(any(. == "e2fsprogs")) \(any(. == "kube"))"' `+imageBoms[image])
		if out != wanted {
			s.Errorf("e2fsprogs and kube are in %s: %s", imageBoms[image], out)
		}
	}
}

// attested checks that each published object has the attestations that it should, and each once.
func (s *scenario) attested() {
	s.Helper()
	for _, object := range []string{driverImage, fleetImage, publishedChart} {
		s.attestation(object, "slsaprovenance1", provenance, ".predicate")
	}
	for image, bom := range imageBoms {
		s.attestation(image, "cyclonedx", bom, ".")
	}
}

// attestation checks that an object has one attestation of a type, with the part of a file of dist/ that a filter of jq selects.
func (s *scenario) attestation(object, kind, file, filter string) {
	s.Helper()
	out := s.administrator(dist, `cosign verify-attestation --key cosign.pub --insecure-ignore-tlog --type `+kind+` `+object+` 2>/dev/null |
    jq --slurp --slurpfile file `+file+` 'map(.payload | @base64d | fromjson | .predicate) == [$file[0] | `+filter+`]'`)
	if out != "true\n" {
		s.Errorf("the attestation %s of %s is not %s of %s, or is there several times", kind, object, filter, file)
	}
}

// makePublish runs make publish again.
func (s *scenario) makePublish() (string, error) {
	return s.shell("make", "--no-print-directory", "-C", filepath.Dir(dist), "publish",
		"CARGO_TARGET_DIR="+filepath.Join(harness.Run, "target1"), "COSIGN_KEY="+filepath.Join(os.Getenv("RUN"), "key/cosign.key"))
}

// changedImage puts other objects under the published names, as an intruder in the registry could.
func changedImage(s *scenario) {
	for _, image := range []string{driverImage, fleetImage} {
		s.intruded(image, "crane mutate --platform linux/"+runtime.GOARCH+" --label changed=yes --tag "+image+" "+image)
	}
	s.intruded(publishedChart, "crane copy "+driverImage+" "+publishedChart)

	other := filepath.Join(s.TempDir(), "SHA256SUMS")
	text, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	s.Must(err)
	s.Must(os.WriteFile(other, append(text, '\n'), 0o600))
	if _, err := s.shell("cosign", "verify-blob", "--key", filepath.Join(dist, "cosign.pub"), "--bundle",
		filepath.Join(dist, "SHA256SUMS.sigstore.json"), "--insecure-ignore-tlog", other); err == nil {
		s.Error("cosign verifies changed checksums")
	}
}

// intruded checks that cosign and make publish notice another object under a name, and restores the published one.
func (s *scenario) intruded(name, change string) {
	s.Helper()
	published := strings.TrimSpace(s.administrator(dist, "crane digest "+name))
	key := filepath.Join(dist, "cosign.pub")
	verify := []string{"verify", "--key", key, "--insecure-ignore-tlog", name}
	attested := []string{"verify-attestation", "--key", key, "--insecure-ignore-tlog", "--type", "slsaprovenance1", name}
	_, err := s.shell("cosign", verify...)
	s.Must(err)
	s.administrator(dist, change)
	// The copy of a signed image is signed, but under its own name.
	for _, arguments := range [][]string{verify, attested} {
		if out, err := s.shell("cosign", arguments...); err == nil {
			s.Errorf("cosign %s accepts the changed %s: %s", arguments[0], name, out)
		}
	}
	out, err := s.makePublish()
	if err == nil || !strings.Contains(out, "a version is published once") {
		s.Errorf("make publish says of the changed %s: %v %s", name, err, out)
	}
	repository, tag, _ := strings.Cut(name, ":")
	s.administrator(dist, "crane tag "+repository+"@"+published+" "+tag)
	_, err = s.shell("cosign", verify...)
	s.Must(err)
}

// downloads is the directory to which the offline archive was copied.
func (s *scenario) downloads() string {
	s.Helper()
	dir := filepath.Join(harness.Run, "offline")
	s.Must(os.MkdirAll(dir, 0o755))
	archives, err := filepath.Glob(filepath.Join(dist, "*-offline-*.tar"))
	s.Must(err)
	for _, archive := range archives {
		if err := os.Link(archive, filepath.Join(dir, filepath.Base(archive))); err != nil && !os.IsExist(err) {
			s.Fatal(err)
		}
	}
	return dir
}

// offline removes every image of the release from the nodes and ends the registry before it installs.
func offline(s *scenario) {
	s.administrator(dist, "kill $(cat "+filepath.Join(harness.Run, "registry.pid")+")")
	for _, n := range nodes() {
		_, err := s.on(n, "env", "CONTAINERD_ADDRESS="+n.containerd(), "CONTAINERD_NAMESPACE=k8s.io", "sh", "-euc",
			"ctr images ls -q | grep -e sig-storage -e rootcellar -e '^sha256:' | xargs ctr images rm --sync >/dev/null")
		s.Must(err)
	}
	dir := filepath.Join(s.downloads(), "rootcellar-"+chartVersion+"-offline-"+runtime.GOARCH)
	s.obey("Without a registry", dir)
	for _, n := range nodes() {
		_, err := s.on(n, "env", "CONTAINERD_ADDRESS="+n.containerd(), "CONTAINERD_NAMESPACE=k8s.io", "sh", "-euc",
			"ctr images ls -q | grep -qx "+fleetImage)
		s.Must(err)
	}
	for _, set := range []string{harness.System + " daemonset/rootcellar", harness.System + " deployment/rootcellar-resizer", "kube-system deployment/snapshot-controller"} {
		s.administrator(dir, "kubectl rollout status --timeout=3m --namespace "+set)
	}
	// Only node2 has a filesystem that shares blocks.
	s.administrator(dir, `kubectl cordon node1
kubectl apply --filename examples
kubectl wait --for=condition=Ready --timeout=3m pod/cellar
kubectl uncordon node1
kubectl apply --filename examples/snapshots/snapshot.yaml
kubectl wait volumesnapshot/cellar --for=jsonpath='{.status.readyToUse}'=true --timeout=2m`)
	s.visits()
}
