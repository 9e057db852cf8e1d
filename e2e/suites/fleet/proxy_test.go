package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"rootcellar.dev/e2e/suites/harness"
)

// call is one request of a client to the API server.
type call struct {
	method, path, query string
	// body is empty for a call that only reads.
	body string
	at   time.Time
	// status is 0 until the API server has answered.
	status int
}

func (c *call) writes() bool { return c.method != http.MethodGet && c.method != http.MethodHead }

func (c *call) String() string {
	return fmt.Sprintf("%s %s %s %d %.300q", c.at.Format("15:04:05.000"), c.method, c.path, c.status, c.body)
}

// matcher selects calls.
type matcher func(*call) bool

// to selects the calls with this method, or any if it is empty, whose path ends so.
func to(method, suffix string) matcher {
	return func(c *call) bool { return (method == "" || c.method == method) && strings.HasSuffix(c.path, suffix) }
}

func (m matcher) and(other matcher) matcher { return func(c *call) bool { return m(c) && other(c) } }

// proxy stands between one client and the API server. It records the client's calls, holds some, and may refuse all.
type proxy struct {
	name string
	// config is the kubeconfig of the client.
	config string
	url    string

	mutex sync.Mutex
	calls []*call
	holds []*hold
	away  bool
	// hidden is the beginning of the paths that are not found.
	hidden string
	// stalls and lies are those of deceit_test.go, by the end of the path of a kind.
	stalls map[string]chan struct{}
	lies   map[string]*lie
	// running end when the API server no longer answers.
	running map[*http.Request]context.CancelFunc
	// gate is the transport of the client's account.
	gate http.RoundTripper
}

// hold keeps one call, until the scenario lets it go.
type hold struct {
	matches matcher
	arrived chan *call
	// verdict is true for a call that reaches the API server.
	verdict chan bool
	once    sync.Once
	done    chan struct{}
}

type callKey struct{}

// newProxy listens on a port of its own, with the rights of the administrator.
func newProxy(name string) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	p := &proxy{name: name, url: "http://" + listener.Addr().String(), running: map[*http.Request]context.CancelFunc{},
		stalls: map[string]chan struct{}{}, lies: map[string]*lie{}}
	p.as(harness.Admin.BearerToken)
	p.config = filepath.Join(os.Getenv("RUN"), "kubeconfig-"+name)
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: %q}}]
users: [{name: proxied, user: {token: unused}}]
contexts: [{name: e2e, context: {cluster: e2e, user: proxied}}]
current-context: e2e
`, p.url)
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		panic(err)
	}
	upstream, err := url.Parse(harness.Admin.Host)
	if err != nil {
		panic(err)
	}
	reverse := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			// The transport sets the token of the account.
			r.Out.Header.Del("Authorization")
			// It compresses then by itself, and lies read what it returns.
			r.Out.Header.Del("Accept-Encoding")
		},
		Transport:     roundTripper(p.forward),
		FlushInterval: -1,
		ModifyResponse: func(response *http.Response) error {
			c := response.Request.Context().Value(callKey{}).(*call)
			p.mutex.Lock()
			c.status = response.StatusCode
			p.mutex.Unlock()
			return p.deceive(c, response)
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     quiet,
	}
	server := &http.Server{Handler: p.handler(reverse), ErrorLog: quiet}
	go func() { _ = server.Serve(listener) }()
	return p
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (p *proxy) forward(r *http.Request) (*http.Response, error) {
	p.mutex.Lock()
	gate := p.gate
	p.mutex.Unlock()
	return gate.RoundTrip(r)
}

// as has the client call with this token.
func (p *proxy) as(token string) {
	config := rest.AnonymousClientConfig(harness.Admin)
	config.BearerToken = token
	gate, err := rest.TransportFor(config)
	if err != nil {
		panic(err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.gate = gate
}

func (p *proxy) handler(reverse http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{method: r.Method, path: r.URL.Path, query: r.URL.RawQuery, at: time.Now()}
		ctx := r.Context()
		if c.writes() {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			c.body = string(body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			// A write that has been sent arrives, even if its client has been killed since.
			ctx = context.WithoutCancel(ctx)
		}
		ctx, cancel := context.WithCancel(context.WithValue(ctx, callKey{}, c))
		defer cancel()
		if !p.begin(c, r, cancel) {
			panic(http.ErrAbortHandler)
		}
		defer p.end(r)
		if p.hides(c) {
			http.NotFound(w, r)
			return
		}
		if h := p.holding(c); h != nil {
			defer close(h.done)
			h.arrived <- c
			if !<-h.verdict {
				panic(http.ErrAbortHandler)
			}
		}
		reverse.ServeHTTP(w, r.WithContext(ctx))
	}
}

func (p *proxy) begin(c *call, r *http.Request, cancel context.CancelFunc) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.away {
		return false
	}
	p.calls = append(p.calls, c)
	p.running[r] = cancel
	return true
}

// hide has the kinds below this path unknown, or all known if it is empty.
func (p *proxy) hide(path string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.hidden = path
}

func (p *proxy) hides(c *call) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.hidden != "" && strings.HasPrefix(c.path, p.hidden) || p.denies(c)
}

func (p *proxy) end(r *http.Request) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.running, r)
}

func (p *proxy) holding(c *call) *hold {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for i, h := range p.holds {
		if c.writes() && h.matches(c) {
			p.holds = slices.Delete(p.holds, i, i+1)
			return h
		}
	}
	return nil
}

// refuse has the API server away for this client, or back.
func (p *proxy) refuse(away bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.away = away
	if away {
		for _, cancel := range p.running {
			cancel()
		}
	}
}

// hold keeps the next write that matches. It is let through at the end of the scenario at the latest.
func (p *proxy) hold(s *scenario, matches matcher) *hold {
	h := &hold{matches: matches, arrived: make(chan *call, 1), verdict: make(chan bool, 1), done: make(chan struct{})}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.holds = append(p.holds, h)
	s.Cleanup(func() {
		p.mutex.Lock()
		p.holds = slices.DeleteFunc(p.holds, func(other *hold) bool { return other == h })
		p.mutex.Unlock()
		h.decide(true)
	})
	return h
}

func (h *hold) decide(through bool) { h.once.Do(func() { h.verdict <- through }) }

// wait returns the call once it is held.
func (h *hold) wait(s *scenario, what string) *call {
	s.Helper()
	select {
	case c := <-h.arrived:
		return c
	case <-time.After(harness.Patience):
		s.Fatalf("not within %v: %s", harness.Patience, what)
		return nil
	}
}

// release lets the held call through, and returns the answer of the API server.
func (h *hold) release(s *scenario, c *call) int {
	s.Helper()
	h.decide(true)
	select {
	case <-h.done:
	case <-time.After(harness.Patience):
		s.Fatalf("no answer to %s", c)
	}
	return c.status
}

// drop loses the held call.
func (h *hold) drop() {
	h.decide(false)
	<-h.done
}

// seen returns the calls that match, the oldest first.
func (p *proxy) seen(matches matcher) []call {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var found []call
	for _, c := range p.calls {
		if matches(c) {
			found = append(found, *c)
		}
	}
	return found
}

// forget empties the record.
func (p *proxy) forget() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.calls = nil
}

func listing(calls []call) string {
	var text strings.Builder
	for _, c := range calls {
		fmt.Fprintf(&text, "\n  %s", &c)
	}
	return text.String()
}
