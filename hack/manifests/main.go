// Command manifests checks Kubernetes YAML without a cluster.
//
// Every argument is a directory. One with a kustomization.yaml is rendered, and must use every
// other YAML file beside it; any other directory is read file by file. Each object is decoded
// strictly into the type of its API version, so a misspelt field or a value of the wrong type
// fails here and not on somebody's cluster.
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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

// check returns how many objects a directory holds.
func check(dir string) (int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return 0, err
	}
	var text []byte
	if slices.Contains(files, filepath.Join(dir, kustomization)) {
		text, err = render(dir, files)
	} else {
		text, err = join(files)
	}
	if err != nil {
		return 0, err
	}
	return decode(text)
}

// render builds a kustomization and refuses one that forgets a file beside it.
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
		if name != kustomization && !slices.Contains(listed.Resources, name) {
			return nil, fmt.Errorf("%s does not list %s", kustomization, name)
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
func decode(text []byte) (int, error) {
	scheme := runtime.NewScheme()
	known := runtime.NewSchemeBuilder(
		appsv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, storagev1.AddToScheme)
	if err := known.AddToScheme(scheme); err != nil {
		return 0, err
	}
	strict := json.NewSerializerWithOptions(
		json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for count := 0; ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			if count == 0 {
				return 0, errors.New("no object found")
			}
			return count, nil
		}
		if err != nil {
			return 0, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		if _, _, err := strict.Decode(document, nil, nil); err != nil {
			return 0, fmt.Errorf("%s: %w", title(document), err)
		}
		count++
	}
}

// title names a document that does not decode, as far as it can be read at all.
func title(document []byte) string {
	var object metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &object); err != nil {
		return "unreadable object"
	}
	return object.Kind + " " + object.Name
}
