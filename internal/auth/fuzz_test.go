package auth_test

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"telapi/internal/auth"
	"telapi/internal/fault"
)

func FuzzAPIKey(f *testing.F) {
	m := newTestStore(f)
	k, full := createKey(f, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)

	f.Add(full)
	f.Add("tk_" + k.ID + "_" + strings.Repeat("A", 43))
	f.Add("tk__")
	f.Add("tk_a_b_c")
	f.Add("")
	f.Fuzz(func(t *testing.T, presented string) {
		gotID, gotDigest, ok := auth.ParseKey(presented)
		if ok && (presented != "tk_"+gotID+"_"+presented[len(presented)-43:] ||
			gotDigest != sha256.Sum256([]byte(presented[len(presented)-43:]))) {
			t.Fatalf("ParseKey(%q) = ID %q and a digest, which do not match the input", presented, gotID)
		}
		who, err := a.APIKey(t.Context(), presented)
		switch {
		case presented == full:
			if err != nil {
				t.Fatal(err)
			}
		case !fault.Is(err, fault.Unauthorized):
			t.Fatalf("%q: principal %+v and error %v, want %s", presented, who, err, fault.Unauthorized)
		}
	})
}

func FuzzVerify(f *testing.F) {
	tokens := newTestTokens()
	good := hs256(validHeader, validClaims)
	f.Add(good)
	f.Add(hs256(`{"alg":"none"}`, validClaims))
	f.Add(hs256(validHeader, `{"sub":1e999}`))
	f.Add("..")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		who, err := tokens.Verify(token)
		if err != nil && !fault.Is(err, fault.Unauthorized) {
			t.Fatalf("%q: error %v, want %s", token, err, fault.Unauthorized)
		}
		// The base64 decoder ignores line breaks. An HTTP header cannot contain them.
		if err == nil && strings.NewReplacer("\r", "", "\n", "").Replace(token) != good {
			t.Fatalf("accepted unsigned token %q as %+v", token, who)
		}
	})
}

// FuzzClaims signs arbitrary claims. Even a console that is tricked into signing
// unusual claims must not create a principal without team and name.
func FuzzClaims(f *testing.F) {
	tokens := newTestTokens()
	f.Add(validHeader, validClaims)
	f.Add(`{"alg":"HS256","crit":["x"]}`, validClaims)
	f.Add(validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060,"aud":["telapi:session"]}`)
	f.Add(validHeader, `null`)
	f.Fuzz(func(t *testing.T, header, claims string) {
		who, err := tokens.Verify(hs256(header, claims))
		if err != nil {
			if !fault.Is(err, fault.Unauthorized) {
				t.Fatal(err)
			}
			return
		}
		if !auth.TeamPattern.MatchString(who.TeamID) || !auth.SubjectPattern.MatchString(who.Subject) || who.Scopes == nil {
			t.Fatalf("%s was accepted as the invalid principal %+v", claims, who)
		}
	})
}
