package scenarios

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

var sources = []entry{
	{"volumes with the layouts of five other systems are planned and imported", otherSystems},
}

// foreign is a PersistentVolume of another system, made by hand, and its directory on node1.
type foreign struct {
	claim string
	// directory is below the disk, with the words NAMESPACE, CLAIM and VOLUME.
	directory string
	// kind is the source: hostPath, local, or the name of a CSI driver, whose handle is in handle.
	kind, handle string
	annotations  map[string]string
	// key is the label in its affinity, or empty without one.
	key   string
	flags []string
}

const provisionedBy = "pv.kubernetes.io/provisioned-by"

// A claim of csi-driver-host-path is copied, and the copy needs that driver, which does not run here. Only its plan is
// tested, in crates/migrate.
var foreigners = []foreign{
	{"kubevirt", "hpvolumes/VOLUME", "hostPath", "",
		map[string]string{provisionedBy: "kubevirt.io/hostpath-provisioner"}, corev1.LabelHostname, nil},
	{"kubevirt-csi", "pool/csi/VOLUME", "kubevirt.io.hostpath-provisioner", "VOLUME",
		map[string]string{provisionedBy: "kubevirt.io.hostpath-provisioner"}, "topology.hostpath.csi/node",
		[]string{"--path '" + oldDisk + "/pool/csi/{handle}'"}},
	{"mazdermind", "kubernetes/NAMESPACE-CLAIM-VOLUME", "hostPath", "",
		map[string]string{provisionedBy: "hostpath", "hostPathProvisionerIdentity": "node1"}, "",
		[]string{"--from manual", "--node node1"}},
	{"kutti", "kutti/vols/VOLUME", "local", "", map[string]string{provisionedBy: "kuttiproject/provisioner-localvolume",
		"kuttiproject.org/provisionedBy": "kutti-localprovisioner", "kuttiproject.org/provisionedOn": "node1"},
		corev1.LabelHostname, []string{"--from manual"}},
	{"by-hand", "srv/CLAIM", "hostPath", "", nil, "", []string{"--node node1"}},
}

// foreignVolume creates the directory with a file, the PersistentVolume and the claim, and returns the move.
func (s *scenario) foreignVolume(f foreign) *move {
	s.Helper()
	volume := s.Namespace + "-" + f.claim
	words := strings.NewReplacer("NAMESPACE", s.Namespace, "CLAIM", f.claim, "VOLUME", volume)
	path := filepath.Join(oldDisk, words.Replace(f.directory))
	_, err := s.on(node1, "sh", "-euc", "umask 0; mkdir -p "+path+"; echo of "+f.claim+" >"+path+"/file")
	s.Must(err)
	var source corev1.PersistentVolumeSource
	switch f.kind {
	case "hostPath":
		source.HostPath = &corev1.HostPathVolumeSource{Path: path}
	case "local":
		source.Local = &corev1.LocalVolumeSource{Path: path}
	default:
		source.CSI = &corev1.CSIPersistentVolumeSource{Driver: f.kind, VolumeHandle: words.Replace(f.handle)}
	}
	s.handMade(f.claim, node1, source, func(volume *corev1.PersistentVolume) {
		volume.Annotations = f.annotations
		volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		switch f.key {
		case "":
			volume.Spec.NodeAffinity = nil
		default:
			volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = f.key
		}
	})
	return &move{scenario: s, claim: f.claim, home: node1, path: path, old: *s.volume(f.claim), before: *s.TheClaim(f.claim)}
}

// Proves: IM1.
func otherSystems(s *scenario) {
	_, err := s.shell("kubectl", "label", "nodes", "--all", "--overwrite", "topology.hostpath.csi/node=other")
	s.Must(err)
	_, err = s.shell("kubectl", "label", "node", "node1", "--overwrite", "topology.hostpath.csi/node=node1")
	s.Must(err)
	var moves []*move
	for _, f := range foreigners {
		m := s.foreignVolume(f)
		m.planned(f.flags...)
		moves = append(moves, m)
	}
	for _, m := range moves {
		for number := range stepFinish + 1 {
			m.do(number)
		}
		s.pod(m.claim, with(m.claim, "/data"))
	}
	for _, m := range moves {
		s.running(m.claim)
		s.says(m.claim, "cat /data/file", "of "+m.claim)
		s.deletePod(m.claim)
		s.deleteClaim(m.claim)
		s.volumeGone(m.old.Name)
	}
}
