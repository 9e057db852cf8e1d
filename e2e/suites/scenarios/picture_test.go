package scenarios

import (
	"fmt"
	"html"
	"os"
	"strings"
)

// The sizes of the README's picture in pixels.
const (
	letter = 7.5
	line   = 18
	margin = 16
)

// pictured are the commands that the README's picture shows; the last ones run on the node of the pod.
var pictured = []struct {
	onNode  bool
	command string
}{
	{false, "kubectl get pvc"},
	{false, `kubectl get csistoragecapacities -A -o jsonpath='{range .items[*]}{.capacity} {.nodeTopology.matchLabels.*} {.storageClassName}{"\n"}{end}' |
    numfmt --from=auto --to=iec-i --round=down --padding=6`},
	{true, "cd /var/lib/rootcellar/pools/default/volumes; ls; ls -l */data"},
}

// picture draws what the README's picture shows of this cluster into an SVG file.
func (s *scenario) picture(file string) {
	s.Helper()
	name, err := s.shell("kubectl", "get", "pod", "cellar", "--output", "jsonpath={.spec.nodeName}")
	s.Must(err)
	node := nodeNamed(name)
	var lines []string
	width := 0
	for _, shown := range pictured {
		place, out := "", ""
		if shown.onNode {
			place = node.name
			out, err = s.on(node, "sh", "-euc", shown.command)
		} else {
			out, err = s.shell("sh", "-euc", shown.command)
		}
		s.Must(err)
		prompt := `<tspan fill="#8fbc6a">` + place + `$</tspan> `
		for _, text := range strings.Split(shown.command, "\n") {
			lines = append(lines, prompt+`<tspan fill="#ffffff">`+html.EscapeString(text)+"</tspan>")
			width = max(width, len(place+"$ "+text))
			prompt = ""
		}
		for _, text := range strings.Split(strings.TrimRight(out, "\n"), "\n") {
			lines = append(lines, html.EscapeString(text))
			width = max(width, len(text))
		}
		lines = append(lines, "")
	}
	lines = lines[:len(lines)-1]
	w, h := int(float64(width)*letter)+2*margin, len(lines)*line+2*margin
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">
<title>A claim, the free capacity of each node, and the volume's files on its node</title>
<!-- "make picture" records it. -->
<rect width="%d" height="%d" rx="8" fill="#24201c"/>
<g font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="12.5" fill="#d8cfc4" xml:space="preserve">
`, w, h, w, h)
	for at, text := range lines {
		if text != "" {
			fmt.Fprintf(&svg, "<text x=\"%d\" y=\"%d\">%s</text>\n", margin, margin+13+at*line, text)
		}
	}
	svg.WriteString("</g>\n</svg>\n")
	s.Must(os.WriteFile(file, []byte(svg.String()), 0o644))
}
