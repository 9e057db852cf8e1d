// Command image writes a one-layer image archive, as `ctr images import` reads it, under the exact name that a manifest
// requests.
//
// Usage: image OUT.tar NAME[,NAME...] ENTRYPOINT[,ARGUMENT...] [SOURCE=/DESTINATION...]
//
// An ENTRYPOINT of - means none. A SOURCE may be a directory, whose files and links keep their modes; later files replace
// earlier ones. With /bin/busybox among the files, every applet gets its link in /bin, unless an earlier file is such a program.
package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The number of postgres is that of its public image.
const passwd = "root:x:0:0:root:/root:/bin/sh\npostgres:x:999:999:postgres:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
const group = "root:x:0:\npostgres:x:999:\nnogroup:x:65534:\n"

// layer collects the contents of the image and keeps the first error.
type layer struct {
	archive *tar.Writer
	made    map[string]bool
	err     error
}

func (l *layer) put(header tar.Header, data []byte) {
	header.Name = strings.Trim(header.Name, "/")
	l.made[header.Name] = true
	header.Size = int64(len(data))
	if l.err == nil {
		l.err = l.archive.WriteHeader(&header)
	}
	if l.err == nil {
		_, l.err = l.archive.Write(data)
	}
}

// has reports whether a program of this name was put where a shell looks for it.
func (l *layer) has(program string) bool {
	for _, dir := range []string{"bin/", "sbin/", "usr/bin/", "usr/sbin/"} {
		if l.made[dir+program] {
			return true
		}
	}
	return false
}

func (l *layer) folder(name string, mode int64) {
	name = strings.Trim(name, "/")
	if name == "" || name == "." || l.made[name] {
		return
	}
	l.folder(path.Dir(name), 0o755)
	l.put(tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}, nil)
}

func (l *layer) file(name string, data []byte, mode int64) {
	l.folder(path.Dir(name), 0o755)
	l.put(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}, data)
}

// tree copies the directories, files and links below a directory.
func (l *layer) tree(source, destination string) error {
	return filepath.WalkDir(source, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name := path.Join(destination, strings.TrimPrefix(file, source))
		switch mode := int64(info.Mode().Perm()); info.Mode().Type() {
		case fs.ModeDir:
			l.folder(name, mode)
		case fs.ModeSymlink:
			link, err := os.Readlink(file)
			if err != nil {
				return err
			}
			l.put(tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: link}, nil)
		case 0:
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			l.file(name, data, mode)
		}
		return nil
	})
}

func (l *layer) copy(spec string) error {
	source, destination, found := strings.Cut(spec, "=")
	if !found {
		return fmt.Errorf("%q is not SOURCE=/DESTINATION", spec)
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return l.tree(source, destination)
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	l.file(destination, data, 0o755)
	if destination != "/bin/busybox" {
		return nil
	}
	applets, err := exec.Command(source, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", source, err)
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" && !l.has(applet) {
			l.put(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
		}
	}
	return nil
}

func build(files []string) ([]byte, error) {
	var data bytes.Buffer
	l := &layer{archive: tar.NewWriter(&data), made: map[string]bool{}}
	l.folder("tmp", 0o1777)
	for _, dir := range []string{"bin", "etc", "root", "proc", "sys", "dev"} {
		l.folder(dir, 0o755)
	}
	l.file("etc/passwd", []byte(passwd), 0o644)
	l.file("etc/group", []byte(group), 0o644)
	for _, spec := range files {
		if err := l.copy(spec); err != nil {
			return nil, err
		}
	}
	if l.err != nil {
		return nil, l.err
	}
	return data.Bytes(), l.archive.Close()
}

func run(out, names, entrypoint string, files []string) error {
	data, err := build(files)
	if err != nil {
		return err
	}
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	})
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, content)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"}}
	if entrypoint != "-" {
		config.Config.Entrypoint = strings.Split(entrypoint, ",")
	}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return err
	}
	tags := map[name.Tag]v1.Image{}
	for _, text := range strings.Split(names, ",") {
		tag, err := name.NewTag(text)
		if err != nil {
			return err
		}
		tags[tag] = image
	}
	return tarball.MultiWriteToFile(out, tags)
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: image OUT.tar NAME[,NAME...] ENTRYPOINT[,ARGUMENT...]|- [SOURCE=/DESTINATION...]")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		log.Fatal(err)
	}
}
