// Package helm tests the chart in deploy/helm. It has a module of its own, so that
// telapi doesn't depend on Helm and Kubernetes. No cluster is started.
package helm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const dir = "../../deploy/helm/telapi"

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm logs each symbolic link
	os.Exit(m.Run())
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// valueFiles returns the values of every file in ci, by name.
func valueFiles(t *testing.T) map[string]chartutil.Values {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "ci/*-values.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("found %d files with values: %v", len(files), err)
	}
	all := map[string]chartutil.Values{}
	for _, file := range files {
		values, err := chartutil.ReadValuesFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = values
	}
	return all
}

// render renders the templates like helm template.
func render(t *testing.T, values chartutil.Values) (string, error) {
	t.Helper()
	c := load(t)
	release := chartutil.ReleaseOptions{Name: "telapi", Namespace: "voice", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, release, nil) // checks values.schema.json
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			text.WriteString("---\n" + files[name] + "\n")
		}
	}
	return text.String(), nil
}

func TestChartHasNoLintWarnings(t *testing.T) {
	for name, values := range valueFiles(t) {
		for _, m := range lint.All(dir, values, "voice", true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

func TestChartHasTheVersionOfTelapi(t *testing.T) {
	version, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSpace(string(version))
	if m := load(t).Metadata; m.Version != want || m.AppVersion != want {
		t.Errorf("chart has version %s and appVersion %s, want %s", m.Version, m.AppVersion, want)
	}
}

// manifests are the decoded objects of one rendering.
type manifests map[string]runtime.Object // by kind/name

// decode decodes manifests strictly: unknown, misspelled and duplicate fields are
// errors.
func decode(t *testing.T, text string) manifests {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		core.AddToScheme, apps.AddToScheme, autoscaling.AddToScheme, networking.AddToScheme, policy.AddToScheme, monitoring.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	found := manifests{}
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, document)
			continue
		}
		found[kind.Kind+"/"+object.(interface{ GetName() string }).GetName()] = object
	}
}

func TestManifestsMatchTheirSchemas(t *testing.T) {
	always := []string{"Deployment/telapi", "PodDisruptionBudget/telapi", "Service/telapi"}
	media := []string{"Service/telapi-media", "StatefulSet/telapi-media"}
	want := map[string][]string{
		"existing-secret": always,
		"minimal":         slices.Concat(always, media, []string{"NetworkPolicy/telapi", "NetworkPolicy/telapi-media", "Secret/telapi", "Secret/telapi-media-tls"}),
		"everything": slices.Concat(always, media, []string{
			"HorizontalPodAutoscaler/telapi", "Ingress/telapi", "NetworkPolicy/telapi", "NetworkPolicy/telapi-media", "PrometheusRule/telapi",
			"Secret/telapi", "ServiceMonitor/telapi", "ServiceMonitor/telapi-media",
		}),
	}
	for name, values := range valueFiles(t) {
		text, err := render(t, values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := slices.Sorted(maps.Keys(decode(t, text)))
		slices.Sort(want[name])
		if !slices.Equal(got, want[name]) {
			t.Errorf("%s: rendered %v, want %v", name, got, want[name])
		}
	}
}

func TestPodsAreConfiguredAndRestricted(t *testing.T) {
	documented, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range valueFiles(t) {
		text, err := render(t, values)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for kind, object := range decode(t, text) {
			if secret, ok := object.(*core.Secret); ok {
				for variable := range secret.StringData {
					if !bytes.Contains(documented, []byte("**`"+variable+"`**")) {
						t.Errorf("%s %s has %s, which is not a setting", name, kind, variable)
					}
				}
			}
			pod := podOf(object)
			if pod == nil {
				continue
			}
			container := pod.Containers[0]
			for _, e := range container.Env {
				if !bytes.Contains(documented, []byte("**`"+e.Name+"`**")) || (e.Value == "" && e.ValueFrom == nil) {
					t.Errorf("%s %s sets %s, which is not a setting, or sets it to nothing", name, kind, e.Name)
				}
			}
			security := container.SecurityContext
			if !is(true, pod.SecurityContext.RunAsNonRoot) || !is(true, security.ReadOnlyRootFilesystem) || !is(false, security.AllowPrivilegeEscalation) || len(security.Capabilities.Drop) == 0 {
				t.Errorf("%s %s has more privileges than it needs", name, kind)
			}
			if !is(false, pod.EnableServiceLinks) || !is(false, pod.AutomountServiceAccountToken) {
				t.Errorf("%s %s gets variables of Services or a service account token", name, kind)
			}
			if container.ReadinessProbe.HTTPGet.Path != "/health" || container.LivenessProbe.HTTPGet != nil {
				t.Errorf("%s %s: want readiness by /health, and no restart while a store is unavailable", name, kind)
			}
			if sleep := container.Lifecycle.PreStop.Sleep.Seconds; *pod.TerminationGracePeriodSeconds < sleep+30+10 {
				t.Errorf("%s %s is killed after %d s, before it can drain", name, kind, *pod.TerminationGracePeriodSeconds)
			}
		}
	}
}

// A pod that is taken over must not reach everything in the cluster, and client addresses
// come from the ingress controller only.
func TestConnectionsOfPodsAreLimited(t *testing.T) {
	for name, want := range map[string]struct {
		proxies, api, media string
	}{
		"minimal":    {"10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fd00::/8", "53/UDP 53 https>1 443 4318 5432 6379", ""},
		"everything": {"10.244.0.0/16,fd00:10:244::/56", "53/UDP 53 https>1 5432>1", "4318"},
	} {
		text, err := render(t, valueFiles(t)[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		objects := decode(t, text)
		for _, e := range podOf(objects["Deployment/telapi"]).Containers[0].Env {
			if e.Name == "TRUSTED_PROXIES" && e.Value != want.proxies {
				t.Errorf("%s: TRUSTED_PROXIES=%s, want %s", name, e.Value, want.proxies)
			}
		}
		if !strings.Contains(text, "TRUSTED_PROXIES") {
			t.Errorf("%s: TRUSTED_PROXIES is not set", name)
		}
		for policy, want := range map[string]string{"telapi": want.api, "telapi-media": want.media} {
			spec := objects["NetworkPolicy/"+policy].(*networking.NetworkPolicy).Spec
			if got := egress(spec); got != want || !slices.Contains(spec.PolicyTypes, networking.PolicyTypeEgress) {
				t.Errorf("%s: %s may connect to %q with policy types %v, want %q", name, policy, got, spec.PolicyTypes, want)
			}
		}
	}
}

// egress returns the ports to which a policy permits connections, with the protocol unless it
// is TCP, and with the number of peers unless it permits all.
func egress(spec networking.NetworkPolicySpec) string {
	var list []string
	for _, rule := range spec.Egress {
		for _, port := range rule.Ports {
			text := port.Port.String()
			if port.Protocol != nil {
				text += "/" + string(*port.Protocol)
			}
			if len(rule.To) > 0 {
				text += fmt.Sprintf(">%d", len(rule.To))
			}
			list = append(list, text)
		}
	}
	return strings.Join(list, " ")
}

// is reports whether a field has been set to the value.
func is(want bool, field *bool) bool { return field != nil && *field == want }

func podOf(object runtime.Object) *core.PodSpec {
	switch o := object.(type) {
	case *apps.Deployment:
		return &o.Spec.Template.Spec
	case *apps.StatefulSet:
		return &o.Spec.Template.Spec
	}
	return nil
}

func TestMissingValuesAreReported(t *testing.T) {
	for want, change := range map[string]func(chartutil.Values){
		"publicURL is missing":        func(v chartutil.Values) { delete(v, "publicURL") },
		"secret.values.REDIS_URL":     func(v chartutil.Values) { delete(v["secret"].(map[string]any)["values"].(map[string]any), "REDIS_URL") },
		"secret.values.METRICS_TOKEN": func(v chartutil.Values) { v["monitoring"] = map[string]any{"enabled": true} },
		"autoscaling has no metric":   func(v chartutil.Values) { v["autoscaling"] = map[string]any{"enabled": true, "sockets": 0, "cpu": 0} },
		"ingress.host is missing":     func(v chartutil.Values) { v["ingress"] = map[string]any{"enabled": true} },
		"replica":                     func(v chartutil.Values) { v["replica"] = 3 }, // misspelled
		"set trustedProxies":          func(v chartutil.Values) { v["settings"] = map[string]any{"TRUSTED_PROXIES": "10.0.0.0/8"} },
		"telapi_port":                 func(v chartutil.Values) { v["settings"] = map[string]any{"telapi_port": 1} },
	} {
		values := valueFiles(t)["minimal"]
		change(values)
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
