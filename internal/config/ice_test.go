package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestICEServersAreParsedFromURLsAndJSON(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"empty", "", "[]"},
		{"one URL", "stun:stun.example", "[{[stun:stun.example]  }]"},
		{"STUN and TURN", "stun:a.example:3478, turn:b.example?transport=udp,stuns:[2001:db8::1]:5349,turns:c.example:443?transport=tcp",
			"[{[stun:a.example:3478 stuns:[2001:db8::1]:5349]  } {[turn:b.example?transport=udp turns:c.example:443?transport=tcp]  }]"},
		{"JSON", `[{"urls":"stun:a.example"},{"urls":["turn:b.example"],"username":"u","credential":"hunter2"}]`,
			"[{[stun:a.example]  } {[turn:b.example] u [redacted]}]"},
		{"empty JSON", `[]`, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := load(t, Dev, "WEBRTC_ICE_SERVERS="+tt.value, "TURN_SHARED_SECRET=north")
			list, err := c.ICEServerList()
			if got := fmt.Sprint(list); err != nil || got != tt.want {
				t.Errorf("servers %s (error %v), want %s", got, err, tt.want)
			}
		})
	}
}

func TestErrorOfInvalidICEServersOmitsValue(t *testing.T) {
	for _, value := range []string{
		"hunter2", "stun:", "http://hunter2.example", "stun:a,,stun:b", "stun:a b", "stun:a:0", "stun:a:99999", "stun:2001:db8::1", "stun://hunter2",
		"stun:a?transport=udp", "turn:a?transport=sctp", "turn:user@hunter2",
		"[", "[1]", "[{}]", `[{"urls":1}]`, `[{"urls":[]}]`, `[{"urls":"stun:a","password":"hunter2"}]`, `[{"urls":"turn:a","username":"hunter2"}]`,
		`[{"urls":"stun:a","urls":"stun:b"}]`, `{"urls":"stun:a"}`,
	} {
		_, _, err := Load([]string{"WEBRTC_ICE_SERVERS=" + value, "TURN_SHARED_SECRET=x"}, Dev)
		if err == nil || !strings.Contains(err.Error(), "WEBRTC_ICE_SERVERS") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want one for WEBRTC_ICE_SERVERS without the value", value, err)
		}
	}
}

func TestTURNServerNeedsCredential(t *testing.T) {
	const withCredential = `[{"urls":"turn:a","username":"u","credential":"c"}]`
	for value, valid := range map[string]bool{"stun:a": true, "turn:a": false, "stun:a,turns:b": false, withCredential: true} {
		_, _, err := Load([]string{"WEBRTC_ICE_SERVERS=" + value}, Dev)
		if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), "TURN_SHARED_SECRET") {
			t.Errorf("%s without TURN_SHARED_SECRET: error %v, want it to be valid: %v", value, err, valid)
		}
	}
}

func FuzzICEServers(f *testing.F) {
	f.Add("stun:a.example:3478,turn:b?transport=udp")
	f.Add(`[{"urls":["stun:[::1]:1"],"username":"u","credential":"c"}]`)
	f.Add("stun:[")
	f.Fuzz(func(t *testing.T, value string) {
		list, err := parseICEServers(value)
		if err != nil {
			return
		}
		for _, s := range list {
			if len(s.URLs) == 0 {
				t.Fatalf("%q has an entry without URLs", value)
			}
		}
	})
}
