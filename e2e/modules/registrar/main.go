// Command registrar stands in for the stock csi-node-driver-registrar, which is not available as a Go module. It takes
// the flags of the installed manifests, under the same image name, and registers the driver with kubelet in the same
// way.
package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Kubelet watches this directory for sockets; the manifests mount its plugins_registry directory here.
const registry = "/registration"

type registrar struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
	refused        chan string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %t %s", status.PluginRegistered, status.Error)
	if !status.PluginRegistered {
		r.refused <- status.Error
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// driverName waits for the driver as the stock registrar does.
func driverName(address string) (string, error) {
	connection, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	return info.GetName(), err
}

// health answers /healthz and checks that kubelet can find the socket.
func health(socket string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(answer http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(socket); err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}

func run() error {
	address := flag.String("csi-address", "", "the driver's socket, in this container")
	path := flag.String("kubelet-registration-path", "", "the driver's socket, on the host")
	page := flag.String("http-endpoint", "", "where to serve /healthz: whether the registration socket is there")
	// The flag of klog, which the chart writes for registrar.logLevel.
	flag.Int("v", 0, "ignored")
	flag.Parse()
	name, err := driverName(*address)
	if err != nil {
		return err
	}
	socket := filepath.Join(registry, name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	service := &registrar{name: name, endpoint: *path, refused: make(chan string, 1)}
	registration.RegisterRegistrationServer(server, service)
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	if *page != "" {
		go func() { ended <- http.ListenAndServe(*page, health(socket)) }()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case reason := <-service.refused:
		return errors.New(reason)
	case <-signals:
		// Closing the listener removes the socket, which kubelet notices.
		server.Stop()
		return nil
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
