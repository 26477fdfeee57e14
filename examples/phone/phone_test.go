package main

import (
	"testing"

	"github.com/emiago/sipgo/sip"
)

func TestNumbersAreMasked(t *testing.T) {
	for user, want := range map[string]string{"+4930123456": "sip:*******3456@h", "1234": "sip:1234@h", "": "sip:@h"} {
		if got := maskURI(sip.Uri{User: user, Host: "h"}); got != want {
			t.Errorf("%q is masked as %q, want %q", user, got, want)
		}
	}
}

func TestSettingsNameWhatIsWrong(t *testing.T) {
	env := map[string]string{
		"TELAPI_KEY": "tk", "PHONE_ENDPOINT": "ep", "PHONE_BOT_URL": "http://bot", "PHONE_SIP": "127.0.0.1:5070",
		"PHONE_TRUNKS": "sip:192.0.2.1:5070, eu=sip:192.0.2.2", "PHONE_RTP_PORTS": "10000-10010",
	}
	c, err := loadConfig(func(name string) string { return env[name] })
	if err != nil || c.RTP != [2]uint16{10000, 10010} || c.Trunks["eu"].Host != "192.0.2.2" || c.Trunks[""].Port != 5070 {
		t.Fatalf("%+v, %v", c, err)
	}
	for name, value := range map[string]string{
		"TELAPI_KEY": "", "PHONE_SIP": "example.com:5060", "PHONE_RTP_PORTS": "10", "PHONE_MAX_CALLS": "-1", "PHONE_RING_TIMEOUT": "30", "PHONE_TRUNKS": "eu=",
	} {
		wrong := func(n string) string {
			if n == name {
				return value
			}
			return env[n]
		}
		if _, err := loadConfig(wrong); err == nil {
			t.Errorf("%s=%q is accepted", name, value)
		}
	}
}

func FuzzParseFragment(f *testing.F) {
	f.Add([]byte("SIP/2.0 200 OK"))
	f.Add([]byte("SIP/2.0 603 Decline\r\n\r\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if status, err := parseFragment(body); err == nil && (status < 100 || status > 699) {
			t.Errorf("status %d of %q", status, body)
		}
	})
}

func TestEscapedHeaderInURI(t *testing.T) {
	if got := escape("a b&c=d;e+f"); got != "a%20b%26c%3Dd%3Be%2Bf" {
		t.Error(got)
	}
	var uri sip.Uri
	if err := sip.ParseUri("sip:bot@h?X="+escape("a b"), &uri); err != nil {
		t.Error(err)
	}
}
