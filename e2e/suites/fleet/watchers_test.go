package fleet

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// watched are the objects that csi-provisioner watches on each node, with its selectors.
var watched = []struct{ path, labels string }{
	{"/api/v1/persistentvolumes", ""},
	{"/api/v1/persistentvolumeclaims", ""},
	{"/apis/storage.k8s.io/v1/storageclasses", ""},
	{"/apis/storage.k8s.io/v1/namespaces/" + harness.System + "/csistoragecapacities",
		"csi.storage.k8s.io/drivername=" + harness.Driver + ",csi.storage.k8s.io/managed-by=external-provisioner-"},
}

// watchers receive everything that the API server sends to nodes, and keep none of it.
type watchers struct {
	bytes, events atomic.Int64
	context       context.Context
	stop          func()
	running       sync.WaitGroup
	failed        atomic.Pointer[error]
}

func newWatchers(ctx context.Context) *watchers {
	w := &watchers{}
	ctx, cancel := context.WithCancel(ctx)
	w.context = ctx
	w.stop = func() {
		cancel()
		w.running.Wait()
	}
	return w
}

// sent is what all nodes have received.
type sent struct{ bytes, events int64 }

func (w *watchers) seen() sent { return sent{w.bytes.Load(), w.events.Load()} }

// start watches as the csi-provisioner of a node does, over a connection of its own.
func (w *watchers) start(node string) error {
	connection := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, of := range watched {
		query := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}}
		if of.labels != "" {
			query.Set("labelSelector", of.labels+node)
		}
		version, err := present(w.context, of.path)
		if err != nil {
			return err
		}
		query.Set("resourceVersion", version)
		request, err := http.NewRequestWithContext(w.context, http.MethodGet, harness.Admin.Host+of.path+"?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		request.Header.Set("Accept", "application/vnd.kubernetes.protobuf;stream=watch")
		request.Header.Set("Authorization", "Bearer "+harness.Admin.BearerToken)
		reply, err := connection.Do(request)
		if err != nil {
			return err
		}
		if reply.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", request.URL, reply.Status)
		}
		w.running.Go(func() {
			defer reply.Body.Close()
			if err := w.count(reply.Body); w.context.Err() == nil {
				err = fmt.Errorf("the watch of %s for %s ended: %w", of.path, node, err)
				w.failed.Store(&err)
			}
		})
	}
	return nil
}

// present is the version of the present objects.
func present(ctx context.Context, path string) (string, error) {
	var list metav1.PartialObjectMetadataList
	err := harness.Client.CoreV1().RESTClient().Get().AbsPath(path).Param("limit", "1").Do(ctx).Into(&list)
	return list.ResourceVersion, err
}

// count reads frames, each with its length before it.
func (w *watchers) count(body io.Reader) error {
	frames := bufio.NewReader(body)
	var length [4]byte
	for {
		if _, err := io.ReadFull(frames, length[:]); err != nil {
			return err
		}
		size := int64(binary.BigEndian.Uint32(length[:]))
		if _, err := io.CopyN(io.Discard, frames, size); err != nil {
			return err
		}
		w.bytes.Add(size + int64(len(length)))
		w.events.Add(1)
	}
}

// usage is that of a process since its start.
type usage struct {
	// cpu is in seconds, received in bytes; resident and peak are in MiB. The peak is without the pages of files, which a
	// full memory limit reclaims.
	cpu, received, resident, peak float64
}

func usageOf(pid int) usage {
	directory := filepath.Join("/proc", strconv.Itoa(pid))
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil {
			panic(err)
		}
		return string(text)
	}
	number := func(text, name string) float64 {
		_, rest, _ := strings.Cut(text, name+":")
		found, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		if err != nil {
			panic(err)
		}
		return found
	}
	// The fields after the name, which is in parentheses, begin with the third.
	stat := strings.Fields(read("stat")[strings.LastIndex(read("stat"), ")")+1:])
	user, _ := strconv.ParseFloat(stat[14-3], 64)
	system, _ := strconv.ParseFloat(stat[15-3], 64)
	status := read("status")
	return usage{
		cpu: (user + system) / 100, received: number(read("io"), "rchar"),
		resident: number(status, "VmRSS") / 1024, peak: (number(status, "VmHWM") - number(status, "RssFile")) / 1024,
	}
}

// processOf returns the process of a program that control-plane.sh started.
func processOf(program string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range files {
		if text, _ := os.ReadFile(file); strings.TrimSpace(string(text)) == program[:min(15, len(program))] {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	panic("there is no " + program)
}

// etcdWrites is the number of keys that were put into etcd or deleted there.
func etcdWrites(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:2379/metrics", nil)
	if err != nil {
		return 0, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	sum := 0.0
	for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
		for _, name := range []string{"etcd_mvcc_put_total ", "etcd_mvcc_delete_total "} {
			if text, found := strings.CutPrefix(lines.Text(), name); found {
				value, err := strconv.ParseFloat(text, 64)
				if err != nil {
					return 0, err
				}
				sum += value
			}
		}
	}
	return sum, nil
}
