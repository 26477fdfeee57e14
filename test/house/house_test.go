package house

import (
	"os"
	"testing"
)

// rules are what the repository is held to. TestEveryRuleCanFail knows a tree
// that breaks each of them.
var rules = []struct {
	name  string
	check func(*Tree) []string
}{
	{"imports run downwards", ImportsRunDownwards},
	{"calls stay in their place", CallsStayInTheirPlace},
	{"packages say what they own", PackagesSayWhatTheyOwn},
	{"files tell one story", FilesTellOneStory},
	{"nothing runs before main", NothingRunsBeforeMain},
	{"nothing is postponed", NothingIsPostponed},
	{"files are formatted", FilesAreFormatted},
}

func TestTheRepositoryKeepsTheHouseRules(t *testing.T) {
	tree, err := Load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Packages) < 5 || len(tree.Texts) == 0 {
		t.Fatalf("found %d packages and %d other sources: this is not the whole repository", len(tree.Packages), len(tree.Texts))
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			for _, finding := range rule.check(tree) {
				t.Error(finding)
			}
		})
	}
}
