// The command phone is a call runtime that speaks SIP: it answers calls, plays speech of
// telapi as RTP, and executes managed commands on the line. See docs/phone.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/emiago/sipgo/sip"
	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

const (
	resume      = 30 * time.Second // claims outlive a lost connection for so long
	maxHTTPBody = 4 << 10
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(log); err != nil {
		log.Error("phone failed", "error", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := loadConfig(os.Getenv)
	if err != nil {
		return err
	}
	runtime, err := callruntime.New(callruntime.Options{URL: config.URL, Key: config.Key, Name: "phone-" + config.SIP.String(), Resume: resume})
	if err != nil {
		return err
	}
	defer runtime.Close()
	phone, err := NewPhone(ctx, config, runtime, log)
	if err != nil {
		return err
	}
	control, err := net.Listen("tcp", config.HTTP)
	if err != nil {
		return err
	}
	mux := http.NewServeMux() // for tests
	mux.HandleFunc("POST /calls", phone.placeCall)
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.MarshalWrite(w, map[string]any{"calls": len(phone.slots)}) // the client has gone
	})
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() { _ = server.Serve(control) })
	defer func() { _ = server.Close() }() // requests are short
	return phone.Serve()
}

// placeCall calls {"to": "sip:…"} and responds when the call is answered.
func (p *Phone) placeCall(w http.ResponseWriter, r *http.Request) {
	var body struct {
		To string `json:"to"`
	}
	err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxHTTPBody), &body)
	to, uriErr := parseURI(body.To)
	if err != nil || uriErr != nil {
		http.Error(w, `use {"to": "sip:alice@192.0.2.1"}`, http.StatusBadRequest)
		return
	}
	p.slots <- struct{}{}
	transaction := uuid.NewString()
	var c *call
	l, err := p.dial(r.Context(), to, nil, []sip.Header{sip.NewHeader(wire.TransactionHeader, transaction)})
	if err == nil {
		if c, err = p.open(r.Context(), l, transaction); err != nil {
			l.hangUp(nil)
		}
	}
	if err != nil {
		<-p.slots
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	go func() {
		c.run()
		<-p.slots
	}()
	w.WriteHeader(http.StatusCreated)
	_ = json.MarshalWrite(w, map[string]any{"channel": c.channel.ID}) // the client has gone
}

// Config holds the settings, which are environment variables. See docs/phone.md.
type Config struct {
	URL, Key, Endpoint, BotURL                   string
	STTURL, STTModel, STTKey                     string
	SIP                                          netip.AddrPort
	HTTP                                         string
	RTP                                          [2]uint16          // the first and last port; zero: any
	Trunks                                       map[string]sip.Uri // by routing pool; "" is the default
	TrunkUser, TrunkPassword, Failover, StateDir string
	MediaHosts                                   []string
	MaxCalls                                     uint
	RingTimeout, MediaTimeout                    time.Duration
}

// loadConfig reads the settings. Its error names all that are wrong.
func loadConfig(env func(string) string) (c Config, err error) {
	c.Trunks = map[string]sip.Uri{}
	set := flag.NewFlagSet("", flag.ContinueOnError) // parses and knows the defaults
	set.StringVar(&c.URL, "TELAPI_URL", "http://localhost:3001", "")
	set.StringVar(&c.Key, "TELAPI_KEY", "", "an API key that telapi dev prints")
	set.StringVar(&c.Endpoint, "PHONE_ENDPOINT", "", "the ID of an endpoint")
	set.StringVar(&c.BotURL, "PHONE_BOT_URL", "", "the URL that answers questions")
	set.StringVar(&c.STTURL, "DEMO_STT_URL", "", "")
	set.StringVar(&c.STTModel, "DEMO_STT_MODEL", "", "")
	set.StringVar(&c.STTKey, "DEMO_STT_KEY", "", "")
	set.TextVar(&c.SIP, "PHONE_SIP", localAddress(), "an IP address of this machine and a port, such as 192.0.2.1:5060")
	set.StringVar(&c.HTTP, "PHONE_HTTP", "127.0.0.1:5080", "")
	set.StringVar(&c.TrunkUser, "PHONE_TRUNK_USER", "", "")
	set.StringVar(&c.TrunkPassword, "PHONE_TRUNK_PASSWORD", "", "")
	set.StringVar(&c.Failover, "PHONE_FAILOVER", "", "")
	set.StringVar(&c.StateDir, "PHONE_STATE", "phone-calls", "")
	set.UintVar(&c.MaxCalls, "PHONE_MAX_CALLS", 200, "a number")
	set.DurationVar(&c.RingTimeout, "PHONE_RING_TIMEOUT", 30*time.Second, "a duration such as 30s")
	set.DurationVar(&c.MediaTimeout, "PHONE_MEDIA_TIMEOUT", time.Minute, "a duration such as 60s")
	set.Func("PHONE_RTP_PORTS", "a range such as 10000-10999 that starts with an even port", func(text string) error {
		_, err := fmt.Sscanf(text, "%d-%d", &c.RTP[0], &c.RTP[1])
		if c.RTP[0]%2 != 0 || c.RTP[0] > c.RTP[1] {
			err = errors.New("not a range")
		}
		return err
	})
	set.Func("PHONE_TRUNKS", "sip:trunk.example, or pool=sip:trunk.example", func(text string) (err error) {
		for _, entry := range list(text) {
			pool, address, named := strings.Cut(entry, "=")
			if !named {
				pool, address = "", entry
			}
			if c.Trunks[pool], err = parseURI(address); err != nil {
				return err
			}
		}
		return nil
	})
	set.VisitAll(func(f *flag.Flag) {
		required := f.Name == "TELAPI_KEY" || f.Name == "PHONE_ENDPOINT" || f.Name == "PHONE_BOT_URL"
		value := env(f.Name)
		if value == "" && required || value != "" && set.Set(f.Name, value) != nil {
			err = errors.Join(err, fmt.Errorf("invalid %s %q: use %s", f.Name, value, f.Usage))
		}
	})
	c.URL = strings.TrimRight(c.URL, "/")
	c.STTURL = strings.TrimSuffix(strings.TrimRight(c.STTURL, "/"), "/v1")
	c.MediaHosts = list(env("PHONE_MEDIA_HOSTS"))
	return c, err
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// localAddress returns the address with which this machine reaches the network, and the
// port of SIP.
func localAddress() netip.AddrPort {
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9}); err == nil { // sends nothing
		host = conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
		_ = conn.Close()
	}
	return netip.AddrPortFrom(host, 5060)
}
