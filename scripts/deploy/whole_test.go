package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"redleaf/scripts/ports"
	"redleaf/scripts/process"
	"redleaf/scripts/services"
)

// TestWhole runs the Kubernetes settings, with the addresses of this machine, the way the manifests do: the schema, the bootstrap job,
// then an instance, which answers whoever knows the password from the secret.
func TestWhole(t *testing.T) {
	db := services.StartMariaDB(t, services.MariaDBOptions{})
	db.Load(read(t, "../schema.sql") + "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('order', 1, 1000);")
	zk := services.StartZooKeeper(t, services.ZooKeeperOptions{})
	dir := process.Dir(t, "whole")
	for name, secret := range map[string]string{"password": "s3cret-of-clients", "mysql-password": services.Password} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var toml string
	for _, d := range documents(t, "kubernetes/common.yaml") {
		if d["kind"] == "ConfigMap" {
			toml = text(at(d, "data", "redleaf.toml"))
		}
	}
	listen, admin := ports.Addr(), ports.Addr()
	toml = strings.NewReplacer(
		`":6380"`, `"`+listen+`"`, `":6381"`, `"`+admin+`"`, `"/data"`, `"`+filepath.Join(dir, "data")+`"`, `"/secrets/`, `"`+dir+`/`,
		"tcp(mysql:3306)", "tcp("+db.Addr()+")", "zookeeper:2181", zk.Servers(),
	).Replace(toml)
	toml = strings.Replace(toml, "[segment]\n", "[segment]\ncheck = \"200ms\"\n", 1) // the database has just started
	file := filepath.Join(dir, "redleaf.toml")
	if err := os.WriteFile(file, []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	container := func(manifest, kind string) (args []string) {
		for _, d := range documents(t, "kubernetes/"+manifest) {
			if d["kind"] == kind {
				for _, a := range at(d, "spec", "template", "spec", "containers", 0, "args").([]any) {
					args = append(args, strings.ReplaceAll(text(a), "/etc/redleaf/redleaf.toml", file))
				}
			}
		}
		return args
	}
	run(t, container("bootstrap.yaml", "Job"), nil)
	d := &process.Daemon{Name: "redleaf-0", Path: process.Build(t), Args: container("statefulset.yaml", "StatefulSet"),
		Env: []string{"PATH=/", "REDLEAF_SNOWFLAKE_NODE=redleaf-0:6380", "REDLEAF_PORT=tcp://10.0.0.1:6380"}, Dir: dir, Log: filepath.Join(dir, "log"), T: t,
		Ready: ready(admin)}
	d.EndWith(t)
	d.Start()
	if got, err := process.Do(listen, process.StartLimit, "INCR", "order"); err != nil || !strings.HasPrefix(got, "NOAUTH") {
		t.Errorf("without the password INCR answered %q %v", got, err)
	}
	client := dial(t, listen)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"AUTH", "s3cret-of-clients"}, "OK"},
		{[]string{"INCR", "order"}, "1"},
		{[]string{"INCR", "unknown"}, "NOTAG"},
	} {
		if got := client(c.args...); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q answered %q, want %s", c.args[0], got, c.want)
		}
	}
	if got := strings.Split(client("SNOWFLAKE.INFO"), "\n"); !slices.Contains(got, "redleaf_0:6380") {
		t.Errorf("the identity is not the pod's name: %q", got)
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(read(t, d.Log), "s3cret-of-clients") || strings.Contains(read(t, d.Log), services.Password) {
		t.Error("the log shows a secret (I13)")
	}
}
