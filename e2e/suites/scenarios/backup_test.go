package scenarios

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

const (
	backupPage = "docs/backup.md"
	// backupMachine is the address of backups.sh.
	backupMachine = "172.30.0.3"
)

// guide is the page about backups, whose placeholders are variables.
type guide struct {
	*scenario
	variables []string
	// dir is a clone of the repository, and machine the root directory of the machine for the backups.
	dir, machine string
	// carried are the files that the machine needs.
	carried []string
	// edits are the changes of the commands that the page describes in words.
	edits *strings.Replacer
}

// guide replaces the placeholders by those of the database, which is restored on the other node.
func (s *scenario) guide(class string) *guide {
	s.Helper()
	return &guide{s, []string{
		"MACHINE=" + backupMachine, "NAMESPACE=" + s.Namespace, "CLAIM=" + databaseClaim,
		"PV=" + s.volume(databaseClaim).Name, "CLASS=" + class, "SIZE=" + databaseSize, "NODE=" + node2.name,
	}, s.clone(), filepath.Join(os.Getenv("PARTS"), "debian-root"), []string{"password", "id_ed25519.pub"}, strings.NewReplacer()}
}

// clone makes a directory in which an administrator finds deploy as in a clone of the repository, and may write.
func (s *scenario) clone() string {
	s.Helper()
	dir := filepath.Join(s.TempDir(), "clone")
	s.Must(os.Mkdir(dir, 0o755))
	s.Must(os.Symlink(filepath.Join(harness.Root, "deploy"), filepath.Join(dir, "deploy")))
	return dir
}

// toS3 is the page with a bucket of the machine, whose certificate is of a CA of its own.
func (s *scenario) toS3(class string) *guide {
	s.Helper()
	g := s.guide(class)
	ca, err := os.ReadFile(filepath.Join(g.machine, "root/.ssh/ca.crt"))
	s.Must(err)
	s.Must(os.WriteFile(filepath.Join(g.dir, "ca.crt"), ca, 0o600))
	const key = "AWS_ACCESS_KEY_ID=backups\nAWS_SECRET_ACCESS_KEY=only-for-backups\nSSL_CERT_FILE=/root/.ssh/ca.crt\n"
	s.Must(os.WriteFile(filepath.Join(g.dir, "s3.env"), []byte(key), 0o600))
	g.variables = append(g.variables, "REPOSITORY=s3:https://"+backupMachine+"/backups/"+s.Namespace)
	g.carried = []string{"password", "s3.env", "ca.crt"}
	g.edits = strings.NewReplacer("--from-file=password", "--from-file=password --from-file=ca.crt",
		`restic --repo "/srv/restic/$NAMESPACE/$CLAIM"`, `set -a && . ./s3.env && SSL_CERT_FILE=$PWD/ca.crt && restic --repo "$REPOSITORY"`)
	return g
}

// follow runs the blocks of a section, and returns their output.
func (g *guide) follow(heading string) string {
	g.Helper()
	var said strings.Builder
	blocks := shellBlock.FindAllStringSubmatch(g.section(backupPage, heading), -1)
	if len(blocks) == 0 {
		g.Fatalf("%s has no commands below %q", backupPage, heading)
	}
	for _, block := range blocks {
		run := g.here
		if block[1] == "backups" {
			run = g.there
		}
		out, err := run(g.edits.Replace(block[2]))
		if err != nil {
			g.Fatalf("%s: %v:\n%s", block[2], err, out)
		}
		said.WriteString(out)
	}
	return said.String()
}

// here runs commands on the administrator's machine.
func (g *guide) here(commands string) (string, error) {
	common := shellBlock.FindStringSubmatch(g.section(backupPage, "Before you begin"))[2]
	command := exec.CommandContext(g.ctx(), "sh", "-euc", common+commands)
	command.Dir, command.Env = g.dir, append(os.Environ(), g.variables...)
	out, err := command.CombinedOutput()
	return string(out), err
}

// there runs commands on the machine for the backups, to which the administrator carried the files.
func (g *guide) there(commands string) (string, error) {
	g.Helper()
	for _, name := range g.carried {
		text, err := os.ReadFile(filepath.Join(g.dir, name))
		g.Must(err)
		g.Must(os.WriteFile(filepath.Join(g.machine, "root", name), text, 0o600))
	}
	command := exec.CommandContext(g.ctx(), "chroot", g.machine, "/bin/sh", "-euc", "cd /root\n"+commands)
	command.Env = append([]string{"HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, g.variables...)
	out, err := command.CombinedOutput()
	return string(out), err
}

// restoreRefused repeats the restore into the claim that has files already.
func (g *guide) restoreRefused() {
	g.Helper()
	block := shellBlock.FindStringSubmatch(g.section(backupPage, "Restore"))[2]
	start, _, _ := strings.Cut(block, "kubectl --namespace")
	if out, err := g.here(start); err == nil || !strings.Contains(out, "already exists") {
		g.Fatalf("the restore is repeated: %v %s", err, out)
	}
	job := "job/restore-" + databaseClaim
	g.Kubectl("wait", job, "--for=condition=Failed", "--timeout", harness.Patience.String())
	if log := g.Kubectl("logs", job); !strings.Contains(log, "is not empty") {
		g.Fatalf("the restore ends with %s", log)
	}
	g.Kubectl("delete", job)
}

// startMachine starts the machine for the backups, and returns a function that stops it.
func (s *scenario) startMachine() (stop func()) {
	s.Helper()
	log, err := os.Create(filepath.Join(harness.Run, "log", "backups"))
	s.Must(err)
	defer log.Close()
	machine := exec.CommandContext(s.ctx(), filepath.Join(harness.Root, "e2e/cluster/backups.sh"))
	machine.Stdout, machine.Stderr = log, log
	s.Must(machine.Start())
	s.Eventually("the machine for the backups answers", harness.Patience, func() string {
		out, err := s.shell("ssh-keyscan", backupMachine)
		if err != nil || !strings.Contains(out, "ssh-ed25519") {
			return fmt.Sprint(out, err)
		}
		connection, err := net.Dial("tcp", backupMachine+":https")
		if err != nil {
			return err.Error()
		}
		s.Must(connection.Close())
		return ""
	})
	return func() {
		_ = machine.Process.Kill()
		_ = machine.Wait()
	}
}

// oddFiles fills /data/odd with all that a backup should preserve.
const oddFiles = `mkdir /data/odd && cd /data/odd && mkdir -p deep/er && head -c 3000000 /dev/urandom >deep/blob &&
	ln deep/blob deep/er/hard && ln -s ../blob deep/er/link && chmod 640 deep/blob && chown 1000:1001 deep &&
	chown -h 12:34 deep/er/link && chmod 2750 deep && mkfifo deep/pipe && mknod deep/null c 1 3 &&
	printf x >"deep/$(printf 'a\nb')" &&
	setfattr -n user.colour -v blue deep/blob && setfattr -n user.kind -v directory deep &&
	touch -d '2001-02-03 04:05:06' deep/er && for i in $(seq 200); do echo $i >deep/$i || exit 1; done &&
	setfattr -n system.posix_acl_access -v ` + acl + ` deep/1 && sync`

// acl also lets user 1000 read a file: setfacl -m u:1000:r.
const acl = "0x0200000001000600ffffffff02000400e803000004000400ffffffff10000400ffffffff20000000ffffffff"

// oddSummary describes each of these files, with its attributes and its checksum.
const oddSummary = `cd /data/odd && find . -print0 | sort -z | xargs -0 stat -c '%N %F %a %u:%g %h %y %t:%T' &&
	find . -print0 | sort -z | xargs -0 getfattr -h -d -m - && find . -type f -print0 | sort -z | xargs -0 sha256sum &&
	[ "$(stat -c %i deep/blob)" = "$(stat -c %i deep/er/hard)" ]`

// ofDebian makes a pod run the image of debian.sh, as root.
func ofDebian(pod *corev1.Pod) { pod.Spec.Containers[0].Image = debian }

// oddFilesOf returns the description by a pod.
func (s *scenario) oddFilesOf(pod string) string {
	s.Helper()
	out, err := s.exec(pod, oddSummary)
	s.Must(err)
	return out
}

// clones returns the claims besides that of the database.
func (s *scenario) clones() []string {
	s.Helper()
	claims, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(s.ctx(), metav1.ListOptions{})
	s.Must(err)
	var names []string
	for _, claim := range claims.Items {
		if claim.Name != databaseClaim {
			names = append(names, claim.Name)
		}
	}
	return names
}

// onlySource waits until no clone, snapshot or pod of a backup is left, and on the node's disk only the database.
func (s *scenario) onlySource() {
	s.Helper()
	s.Eventually("nothing is left of the backup", harness.Patience, func() string {
		if claims := s.clones(); len(claims) > 0 {
			return fmt.Sprint("claims ", claims)
		}
		if pods := s.Kubectl("get", "pods", "--selector", "batch.kubernetes.io/job-name", "--output", "name"); pods != "" {
			return pods
		}
		if found := s.directories(node1, "reflink", s.Namespace+"_"); len(found) != 1 {
			return fmt.Sprint("volumes ", found)
		}
		return ""
	})
	if left := slices.Concat(s.snapshotsOnDisk(node1, "reflink"), s.snapshotsOnDisk(node2, "reflink")); len(left) > 0 {
		s.Fatalf("left are %q", left)
	}
}

// backupFails runs a backup that must fail, and leaves nothing.
func (s *scenario) backupFails(job string) {
	s.Helper()
	s.Kubectl("create", "job", job, "--from", "cronjob/backup-"+databaseClaim)
	s.Eventually("a clone is made", harness.Patience, func() string {
		if len(s.clones()) == 0 {
			return "there is none"
		}
		return ""
	})
	s.Kubectl("wait", "job/"+job, "--for=condition=Failed", "--timeout", harness.Patience.String())
	s.onlySource()
}

// backUp loses the volume after a backup that failed between two that did not.
//
// Proves: K1, I3.
func backUp(s *scenario) {
	class := s.Class(map[string]string{"pool": "reflink", "kind": "image", "csi.storage.k8s.io/fstype": "ext4"})
	d := s.database(class)
	life := s.container(databasePod)
	s.pod("files", with(databaseClaim, "/data"), at(node1), ofDebian)
	s.running("files")
	_, err := s.exec("files", oddFiles)
	s.Must(err)

	stop := s.startMachine()
	g := s.guide(class)
	g.follow("Prepare the machine")
	if said := g.follow("Back up"); !strings.Contains(said, "1 snapshots") {
		s.Fatalf("not one backup:\n%s", said)
	}
	s.onlySource()
	const terms = ".requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	pods := s.field("cronjob", "backup-"+databaseClaim, ".spec.jobTemplate.spec.template.spec.affinity.nodeAffinity"+terms)
	if volume := s.field("pv", s.volume(databaseClaim).Name, ".spec.nodeAffinity.required.nodeSelectorTerms"); volume != pods {
		s.Fatalf("the affinity of the volume is %s, and of the backup %s", volume, pods)
	}

	stop()
	s.backupFails("unreachable")
	stop = s.startMachine()
	defer stop()

	_, err = s.exec("files", "cd /data/odd && rm deep/7 && echo more >deep/8 && mkdir new && setfattr -n user.colour -v red deep/blob")
	s.Must(err)
	files := s.oddFilesOf("files")
	if !holdsAll(files, []string{`user.colour="red"`, `user.kind="directory"`, "posix_acl_access", "character special file", "fifo"}) {
		s.Fatalf("the files before are\n%s", files)
	}
	now := moment{before: d.acknowledged(20)}
	s.Kubectl("create", "job", "second", "--from", "cronjob/backup-"+databaseClaim)
	s.Kubectl("wait", "job/second", "--for=condition=Complete", "--timeout", harness.Patience.String())
	now.after = d.acknowledged(20)
	s.onlySource()
	if s.field("cronjob", "backup-"+databaseClaim, ".status.lastSuccessfulTime") == "" {
		s.Fatal("the CronJob reports no success")
	}
	if got := s.container(databasePod); got != life {
		s.Fatalf("the database was %s and is %s", life, got)
	}

	s.deletePod("files")
	d.delete()
	s.detached()
	d.restored(g, files, now)
	s.Note += fmt.Sprintf("; %d inserts before the backup", now.before)
}

// restored restores the claim on the other node, and finds its files and inserts.
func (d *database) restored(g *guide, files string, now moment) {
	d.Helper()
	g.follow("Restore")
	if home := d.home(d.volume(databaseClaim)); home != node2 {
		d.Fatalf("the claim is on %s", home.name)
	}
	g.restoreRefused()
	d.pod("files", with(databaseClaim, "/data"), ofDebian)
	d.running("files")
	if got := d.oddFilesOf("files"); got != files {
		d.Fatalf("other files are restored:\n%s\nand not\n%s", got, files)
	}
	d.pod("restored", with(databaseClaim, "/data"), postgres)
	d.Eventually("the restored PostgreSQL serves", harness.Patience, func() string {
		if out, err := d.exec("restored", "pg_isready"); err != nil {
			return out
		}
		return ""
	})
	if complaint := d.complaint("restored", now); complaint != "" {
		d.Fatal(complaint)
	}
	d.deletePod("files")
	d.deletePod("restored")
	d.deleteClaim(databaseClaim)
	d.detached()
}

// backUpToS3 empties a volume after its first backup to a bucket, which no empty backup follows, loses it, and restores it on
// the other node.
//
// Proves: K1.
func backUpToS3(s *scenario) {
	class := s.Class(map[string]string{"pool": "reflink", "kind": "image", "csi.storage.k8s.io/fstype": "ext4"})
	s.Claim(databaseClaim, class, databaseSize)
	s.pod("files", with(databaseClaim, "/data"), at(node1), ofDebian)
	s.running("files")
	_, err := s.exec("files", oddFiles)
	s.Must(err)
	files := s.oddFilesOf("files")

	defer s.startMachine()()
	g := s.toS3(class)
	g.follow("Or use S3")
	if said := g.follow("Back up"); !strings.Contains(said, "1 snapshots") {
		s.Fatalf("not one backup:\n%s", said)
	}
	s.onlySource()
	_, err = s.exec("files", "find /data -mindepth 1 -delete && sync")
	s.Must(err)
	s.backupFails("empty")
	s.deletePod("files")
	s.deleteClaim(databaseClaim)
	s.detached()

	g.follow("Restore")
	if home := s.home(s.volume(databaseClaim)); home != node2 {
		s.Fatalf("the claim is on %s", home.name)
	}
	s.pod("files", with(databaseClaim, "/data"), ofDebian)
	s.running("files")
	if got := s.oddFilesOf("files"); got != files {
		s.Fatalf("other files are restored:\n%s\nand not\n%s", got, files)
	}
	s.deletePod("files")
	s.deleteClaim(databaseClaim)
	s.detached()
}
