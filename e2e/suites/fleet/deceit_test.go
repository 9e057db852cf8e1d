package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// A proxy may also deceive its client: hold the events of a kind, or show only some of its objects.

// lie hides objects of one kind from lists and watches.
type lie struct {
	hides func(name string) bool
	// denies says that a request for such an object by its name is not found either.
	denies bool
}

// stall holds the events of all watches of a kind until the returned function lets them through.
// Lists and single objects are answered meanwhile.
func (p *proxy) stall(s *scenario, kind string) func() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	gate := make(chan struct{})
	p.stalls[kind] = gate
	resume := sync.OnceFunc(func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		delete(p.stalls, kind)
		close(gate)
	})
	s.Cleanup(resume)
	return resume
}

// show has the client see only a part of a kind, until the returned function ends that. A watch that began meanwhile goes on
// to show only a part, so the client has to begin again.
func (p *proxy) show(s *scenario, kind string, told lie) func() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.lies[kind] = &told
	end := func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		delete(p.lies, kind)
	}
	s.Cleanup(end)
	return end
}

// denies says whether an object is not found for this client. The caller has the mutex.
func (p *proxy) denies(c *call) bool {
	told := p.lies[path.Base(path.Dir(c.path))]
	return told != nil && told.denies && told.hides(path.Base(c.path))
}

func (c *call) watches() bool { return strings.Contains(c.query, "watch=") }

// deceive changes an answer as the stalls and lies about its kind want it.
func (p *proxy) deceive(c *call, response *http.Response) error {
	kind := path.Base(c.path)
	if c.writes() || response.StatusCode != http.StatusOK {
		return nil
	}
	if c.watches() {
		response.Body = &stallable{response.Body, p, kind, response.Request.Context()}
	}
	p.mutex.Lock()
	told := p.lies[kind]
	p.mutex.Unlock()
	switch {
	case told == nil:
		return nil
	case c.watches():
		response.Body = told.events(response.Body)
		return nil
	default:
		return told.list(response)
	}
}

// stallable is the body of a watch.
type stallable struct {
	io.ReadCloser
	proxy   *proxy
	kind    string
	context context.Context
}

func (b *stallable) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	b.proxy.mutex.Lock()
	gate := b.proxy.stalls[b.kind]
	b.proxy.mutex.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-b.context.Done():
		}
	}
	return n, err
}

// named is the part of an object that a lie needs.
type named struct {
	Metadata struct{ Name string }
}

// list leaves the hidden objects out of a list.
func (l *lie) list(response *http.Response) error {
	var list map[string]json.RawMessage
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return err
	}
	_ = response.Body.Close()
	var items, shown []json.RawMessage
	if err := json.Unmarshal(list["items"], &items); err != nil {
		return err
	}
	for _, item := range items {
		var object named
		if err := json.Unmarshal(item, &object); err != nil {
			return err
		}
		if !l.hides(object.Metadata.Name) {
			shown = append(shown, item)
		}
	}
	if shown == nil {
		shown = []json.RawMessage{}
	}
	var err error
	if list["items"], err = json.Marshal(shown); err != nil {
		return err
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	response.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return nil
}

// filtered is the body of a watch without the events of hidden objects.
type filtered struct {
	lie   *lie
	lines *bufio.Reader
	rest  []byte
	io.Closer
}

func (l *lie) events(body io.ReadCloser) io.ReadCloser {
	return &filtered{lie: l, lines: bufio.NewReader(body), Closer: body}
}

func (f *filtered) Read(into []byte) (int, error) {
	for len(f.rest) == 0 {
		line, err := f.lines.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		var event struct{ Object named }
		if json.Unmarshal(line, &event) != nil || !f.lie.hides(event.Object.Metadata.Name) {
			f.rest = line
		}
	}
	n := copy(into, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}
