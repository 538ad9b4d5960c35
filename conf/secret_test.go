package conf

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// secretText is looked for everywhere it must not be (I13). No four letters of it are in any name or sentence here.
const secretText = "Zq7xVw93kJ"

// wantNoSecret fails when s holds the secret, or half of it.
func wantNoSecret(t *testing.T, what, s string) {
	t.Helper()
	for i := 0; i+4 <= len(secretText); i++ {
		if strings.Contains(strings.ToLower(s), strings.ToLower(secretText[i:i+4])) {
			t.Errorf("%s shows a secret: %s", what, s)
			return
		}
	}
	if strings.Contains(strings.ToLower(s), fmt.Sprintf("%x", secretText)) {
		t.Errorf("%s shows a secret in hex: %s", what, s)
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	type hidden struct{ inner Secret }
	s := NewSecret(secretText)
	if s.Reveal() != secretText {
		t.Fatal(s.Reveal())
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "% x", "%10.3s"} {
		for _, v := range []any{s, &s, []Secret{s}, map[string]Secret{"k": s}, hidden{s}, &hidden{s}, struct{ S any }{s}, fmt.Errorf("%w %v", os.ErrExist, s)} {
			wantNoSecret(t, verb, fmt.Sprintf(verb, v))
		}
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "s", s, "c", Config{Auth: Auth{Password: s}})
	j, err := json.Marshal(map[string]any{"s": s, "p": &s, "l": []Secret{s}})
	if err != nil {
		t.Fatal(err)
	}
	wantNoSecret(t, "a log", log.String())
	wantNoSecret(t, "JSON", string(j))
	if got := fmt.Sprintf("%v %s %q %#v %v %q", s, s, s, s, Secret{}, NewSecret("")); got != `******** ******** "********" "********"  ""` {
		t.Errorf("masked: %s", got)
	}
}

// TestConfigHidesSecrets: every secret setting is set, from every source, and no rendering shows it.
func TestConfigHidesSecrets(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "word")
	if err := os.WriteFile(file, []byte(secretText+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("5a71", 16)
	c := mustLoad(t, map[string]string{"f": `
[auth]
password_file = "` + file + `"
[[auth.user]]
name = "orders"
password_sha256 = "` + hash + `"
`, "dsns": `["u:` + secretText + `@tcp(a:3306)/d?charset=utf8mb4", "` + secretText + `"]` + "\n"},
		[]string{"-c", "f", "-set", "snowflake.zookeeper.auth=u:" + secretText, "-set", "segment.store=mysql", "-set", "segment.mysql.password_file=" + file},
		[]string{"REDLEAF_SEGMENT_MYSQL_DSN_FILE=dsns"})
	m := c.Segment.MySQL
	if c.Auth.Password.Reveal() != secretText || m.Password.Reveal() != secretText || len(m.DSN) != 2 || m.DSN[1].Reveal() != secretText ||
		c.Snowflake.ZooKeeper.Auth.Reveal() != "u:"+secretText {
		t.Fatalf("not read: %+v", c)
	}
	j, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	settings := c.Settings()
	for what, s := range map[string]string{
		"%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", c), "%#v": fmt.Sprintf("%#v", c), "pointer": fmt.Sprintf("%+v", &c),
		"JSON": string(j), "Effective": c.Effective(), "Settings": fmt.Sprintf("%+v", settings),
	} {
		wantNoSecret(t, what, s)
		if strings.Contains(s, hash) {
			t.Errorf("%s shows a password's hash", what)
		}
	}
	for _, want := range []string{
		`segment.mysql.dsn = ["u:********@tcp(a:3306)/d?charset=utf8mb4", "********"]  # env REDLEAF_SEGMENT_MYSQL_DSN_FILE`,
		`snowflake.zookeeper.auth = "********"  # flag -set`,
		`auth.password = "********"  # file f:3`,
		`auth.user = [{name = "orders", password_sha256 = ["********"], tags = ["*"], groups = ["issue", "read"], rate = 0}]  # file f:4`,
	} {
		if !strings.Contains(c.Effective(), want+"\n") {
			t.Errorf("-check lacks %s in\n%s", want, c.Effective())
		}
	}
	for _, s := range settings {
		want, ok := map[string]string{"segment.mysql.dsn": `["********", "********"]`, "auth.password": "********", "snowflake.zookeeper.auth": "********"}[s.Name]
		if ok && (s.Value != want || !s.Secret) {
			t.Errorf("CONFIG GET %s shows %s", s.Name, s.Value)
		}
	}
}

func TestMaskDSN(t *testing.T) {
	for _, tt := range []struct{ dsn, want string }{
		{"u:pw@tcp(h:3306)/d", "u:********@tcp(h:3306)/d"},
		{"u:p@w:/@x@tcp(h:3306)/d?a=b", "u:********@tcp(h:3306)/d?a=b"},
		{"u@unix(/run/mysqld.sock)/d", "u@unix(/run/mysqld.sock)/d"},
		{"u:pw@/d", "u:********@/d"},
		{"u:pw@tcp(h)/d?x=a@b", "********"},
		{"mysql://u:pw@h/d", "mysql:********@h/d"},
		{"jdbc:mysql://h/d?user=u&password=p@w", "********"},
		{"h/d", "********"},
		{"", ""},
	} {
		if got := maskDSN(NewSecret(tt.dsn)); got != tt.want {
			t.Errorf("%s is shown as %s, want %s", tt.dsn, got, tt.want)
		}
	}
}

// TestMistakesHideSecrets: a secret in a place where it is wrong, or with a slip beside it, is not repeated.
func TestMistakesHideSecrets(t *testing.T) {
	for _, line := range []string{
		`password = %s`, `password = "%s`, `password = "%s" x`, `password = "x"%s`, `password = '%s`, `password = """%s`, `password = "\%s"`,
		`password = "\u%s"`, `password = ["%s"]`, `password = ["%s"`, `password = {a = "%s"}`, `password = 1%s`, `password = "a"b%s"`, "password = \"\"\"\n%s = 1 \\q\n\"\"\"",
		"password = \"\"\"\\q\n%s = 1\n\"\"\"", "password = [\n  %s = 1,\n]", "password = [ 1x\n  \"%s\",\n]", `password "%s"`, `password: %s`, `pasword = "%s"`, `pasword = %s`, `pasword = "%s`,
		`password = "x"` + "\n" + `password = "%s"`, `password.x = "%s"`, `[password]` + "\n" + `x = "%s"`, `pass = 2024-01-01%s`, `password = +%s`, `password = 0x%s`, `password = 1.%s`, `password = 1_%s_`,
		`user = "%s"`, `user = [{name = "a", password = "%s"}]`, `user = [{name = "a", password_sha256 = "%s"}]`, "[[auth.user]]\nname = \"a\"\npassword_sha256 = [%s]",
		"[[auth.user]]\nname = \"a\"\npassword_sha256 = [[\"%s\"]]", "[segment.mysql]\ndsn = 5%s", "[segment.mysql]\ndsn = \"u:%s@tcp(h)/d", "[segment.mysql]\ndsn = [\"u:%s@tcp(h)/d\", 5]",
		"[segment.mysql]\ndsn = [\"u:%s@tcp(h)/d\", \"\"]", "[segment.mysql]\ndsn = \"u:%s@tcp(h)/d\"", "[snowflake.zookeeper]\nauth = \"%s\"", "[segment]\nmysql = \"u:%s@tcp(h)/d\"",
	} {
		text := "[auth]\n" + strings.Replace(line, "%s", secretText, 1) + "\n"
		_, _, err := load(map[string]string{"f": text}, []string{"-c", "f"}, nil)
		if err == nil {
			t.Errorf("taken: %s", text)
			continue
		}
		wantNoSecret(t, fmt.Sprintf("%q", line), err.Error())
	}
	for _, environ := range []string{
		"REDLEAF_AUTH_PASSWRD=%s", "REDLEAF_SEGMENT_MYSQL_DSN=[%s", `REDLEAF_SEGMENT_MYSQL_DSN=["%s", 5]`, "REDLEAF_SEGMENT_MYSQL_DSN=%s",
		"REDLEAF_AUTH_USER=%s", `REDLEAF_AUTH_USER=[{name = "a", password_sha256 = "%s"}]`, "REDLEAF_SNOWFLAKE_ZOOKEEPER_AUTH=%s",
	} {
		_, _, err := load(nil, nil, []string{strings.Replace(environ, "%s", secretText, 1), "REDLEAF_SNOWFLAKE_REGISTRY=zookeeper"})
		if err == nil {
			t.Errorf("taken: %s", environ)
			continue
		}
		wantNoSecret(t, environ, err.Error())
	}
	for _, args := range [][]string{
		{"-set", "auth.password", secretText}, {"-set", "auth.password=", secretText}, {"-set", "auth.password", "=", secretText}, {"-auth.password", secretText},
		{"-auth.password=" + secretText}, {"-password", secretText}, {"-check=" + secretText}, {secretText}, {"-set", secretText}, {"-set", "auth.pasword=" + secretText},
		{"-set", "auth.password=" + secretText, "-set", "auth.password=" + secretText}, {"-set", "segment.mysql.dsn=[" + secretText},
	} {
		_, _, err := load(nil, args, nil)
		if err == nil {
			t.Errorf("taken: %q", args)
			continue
		}
		wantNoSecret(t, fmt.Sprint(args[:1]), err.Error())
	}
}

func TestPasswordFiles(t *testing.T) {
	files := map[string]string{"word": "from a file\n", "none": "\n", "big": strings.Repeat("x", 65537),
		"toml": "auth.password_file = \"word\"\n", "toml2": "auth.password = \"in the file\"\n"}
	for _, tt := range []struct {
		args, environ []string
		want          string
	}{
		{nil, []string{"REDLEAF_AUTH_PASSWORD_FILE=word"}, "from a file"},
		{[]string{"-c", "toml"}, nil, "from a file"},
		{[]string{"-c", "toml"}, []string{"REDLEAF_AUTH_PASSWORD=from env"}, "from env"},
		{[]string{"-c", "toml2"}, []string{"REDLEAF_AUTH_PASSWORD_FILE=word"}, "from a file"},
		{[]string{"-c", "toml2", "-set", "auth.password=from a flag"}, []string{"REDLEAF_AUTH_PASSWORD_FILE=word"}, "from a flag"},
		{[]string{"-c", "toml2"}, []string{"REDLEAF_AUTH_PASSWORD=[not a list]"}, "[not a list]"},
	} {
		if c := mustLoad(t, files, tt.args, tt.environ); c.Auth.Password.Reveal() != tt.want {
			t.Errorf("%q %q: %q, want %q", tt.args, tt.environ, c.Auth.Password.Reveal(), tt.want)
		}
	}
	_, _, err := load(files, nil, []string{"REDLEAF_AUTH_PASSWORD_FILE=none", "REDLEAF_SEGMENT_MYSQL_DSN_FILE=/no/such", "REDLEAF_SNOWFLAKE_ZOOKEEPER_AUTH_FILE=big", "REDLEAF_SEGMENT_MYSQL_DSN_FILES=x"})
	wantMistakes(t, err,
		`REDLEAF_SEGMENT_MYSQL_DSN_FILE: segment.mysql.dsn: open /no/such: no such file or directory`,
		`REDLEAF_SEGMENT_MYSQL_DSN_FILES: unknown setting; did you mean REDLEAF_SEGMENT_MYSQL_DSN_FILE?`,
		`REDLEAF_SNOWFLAKE_ZOOKEEPER_AUTH_FILE: snowflake.zookeeper.auth: big is too large to hold a secret`,
		`REDLEAF_AUTH_PASSWORD_FILE: auth.password_file: none is empty; it should hold the secret`,
	)
	_, _, err = load(files, nil, []string{"REDLEAF_AUTH_PASSWORD_FILE=word", "REDLEAF_AUTH_PASSWORD=x", "REDLEAF_SEGMENT_MYSQL_DSN=a", "REDLEAF_SEGMENT_MYSQL_DSN_FILE=word", "REDLEAF_SEGMENT_STORE=mysql"})
	wantMistakes(t, err,
		`REDLEAF_SEGMENT_MYSQL_DSN_FILE: segment.mysql.dsn: is set by REDLEAF_SEGMENT_MYSQL_DSN as well; take one away`,
		`REDLEAF_AUTH_PASSWORD_FILE: auth.password_file: auth.password is set as well; take one away`,
	)
}
