// Command manifests checks Kubernetes YAML without a cluster.
//
// Every argument is a directory. One with a kustomization.yaml is rendered, and must use every other YAML file next to
// it except those of alone; any other directory is read file by file. Each object is decoded strictly into the type of
// its API version, so a misspelt field or a value of the wrong type fails here and not on somebody's cluster.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	machineconfigurationv1 "github.com/openshift/api/machineconfiguration/v1"
	securityv1 "github.com/openshift/api/security/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const kustomization = "kustomization.yaml"

// alone names the files that are applied by themselves, because they do more than install.
var alone = []string{"machineconfig.yaml"}

func main() {
	failed := len(os.Args) < 2
	for _, dir := range os.Args[1:] {
		objects, err := check(dir)
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "%s: %v\n", dir, err)
			continue
		}
		fmt.Printf("%s: %d objects\n", dir, objects)
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the number of objects in a directory.
func check(dir string) (int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return 0, err
	}
	var text []byte
	if slices.Contains(files, filepath.Join(dir, kustomization)) {
		text, err = render(dir, files)
		files = slices.DeleteFunc(files, func(file string) bool {
			return !slices.Contains(alone, filepath.Base(file))
		})
	}
	if err != nil {
		return 0, err
	}
	rest, err := join(files)
	if err != nil {
		return 0, err
	}
	objects, err := decode(slices.Concat(text, rest))
	return len(objects), err
}

// render builds a kustomization and refuses one that forgets a file next to it.
func render(dir string, files []string) ([]byte, error) {
	source, err := os.ReadFile(filepath.Join(dir, kustomization))
	if err != nil {
		return nil, err
	}
	var listed types.Kustomization
	if err := yaml.UnmarshalStrict(source, &listed); err != nil {
		return nil, err
	}
	for _, file := range files {
		name := filepath.Base(file)
		own := name == kustomization || slices.Contains(alone, name)
		if own == slices.Contains(listed.Resources, name) {
			return nil, fmt.Errorf("%s must list every other file but %v: see %s", kustomization, alone, name)
		}
	}
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	return objects.AsYaml()
}

func join(files []string) ([]byte, error) {
	var text bytes.Buffer
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		text.WriteString("---\n")
		text.Write(content)
	}
	return text.Bytes(), nil
}

// decode reads each document of a stream strictly; an empty stream is a mistake too.
func decode(text []byte) ([]runtime.Object, error) {
	scheme := runtime.NewScheme()
	known := runtime.NewSchemeBuilder(
		admissionv1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, storagev1.AddToScheme,
		securityv1.Install, machineconfigurationv1.Install, snapshotv1.AddToScheme, monitoringv1.AddToScheme)
	if err := known.AddToScheme(scheme); err != nil {
		return nil, err
	}
	strict := json.NewSerializerWithOptions(
		json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			if len(objects) == 0 {
				return nil, errors.New("no object found")
			}
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if isEmpty(document) {
			continue
		}
		object, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", title(document), err)
		}
		objects = append(objects, object)
	}
}

// isEmpty reports whether a document contains only comments.
func isEmpty(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// title names a document that does not decode, as far as possible.
func title(document []byte) string {
	var object metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &object); err != nil {
		return "unreadable object"
	}
	return object.Kind + " " + object.Name
}
