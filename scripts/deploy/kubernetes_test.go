package deploy

import (
	"slices"
	"strings"
	"testing"
)

// TestKubernetes reads the manifests as a strict reviewer does, and starts -check with what a container would get.
func TestKubernetes(t *testing.T) {
	common := documents(t, "kubernetes/common.yaml")
	kinds := map[string]map[string]any{}
	for _, d := range common {
		kinds[text(d["kind"])] = d
	}
	toml := text(at(kinds["ConfigMap"], "data", "redleaf.toml"))
	if toml == "" {
		t.Fatal("there are no settings in the ConfigMap")
	}
	if at(kinds["PodDisruptionBudget"], "spec", "maxUnavailable") != 1 || text(kinds["PodDisruptionBudget"]["apiVersion"]) != "policy/v1" {
		t.Error("the disruption budget does not keep all but one")
	}
	service := kinds["Service"]
	if at(service, "spec", "ports", 0, "port") != 6380 || at(service, "spec", "publishNotReadyAddresses") != nil {
		t.Error("the service of the clients must have port 6380 and ready pods alone")
	}

	cases := []struct{ file, kind string }{{"statefulset.yaml", "StatefulSet"}, {"deployment.yaml", "Deployment"}, {"bootstrap.yaml", "Job"}}
	for _, c := range cases {
		t.Run(c.kind, func(t *testing.T) {
			var set map[string]any
			for _, d := range documents(t, "kubernetes/"+c.file) {
				if text(d["kind"]) == c.kind {
					set = d
				}
			}
			pod := at(set, "spec", "template", "spec")
			if at(pod, "enableServiceLinks") != false {
				t.Error("enableServiceLinks must be false: REDLEAF_PORT is no setting of ours")
			}
			if at(pod, "automountServiceAccountToken") != false {
				t.Error("a token that nobody needs is mounted")
			}
			if at(pod, "securityContext", "runAsNonRoot") != true || at(pod, "securityContext", "runAsUser") != 65532 ||
				at(pod, "securityContext", "fsGroup") != 65532 || text(at(pod, "securityContext", "seccompProfile", "type")) != "RuntimeDefault" {
				t.Error("the pod's user is not the image's, or it may more than it needs")
			}
			container := at(pod, "containers", 0)
			if at(container, "securityContext", "readOnlyRootFilesystem") != true || at(container, "securityContext", "allowPrivilegeEscalation") != false ||
				at(container, "securityContext", "capabilities", "drop", 0) != "ALL" {
				t.Error("the container may more than it needs")
			}
			// Every path that the settings name is a mount, and the data directory is absolute.
			mounts := map[string]bool{}
			volumes := map[string]bool{}
			for _, v := range at(pod, "volumes").([]any) {
				volumes[text(at(v, "name"))] = true
			}
			claims, _ := at(set, "spec", "volumeClaimTemplates").([]any)
			for _, v := range claims {
				volumes[text(at(v, "metadata", "name"))] = true
			}
			for _, m := range at(container, "volumeMounts").([]any) {
				mounts[text(at(m, "mountPath"))] = true
				if !volumes[text(at(m, "name"))] {
					t.Errorf("there is no volume %v", at(m, "name"))
				}
			}
			for _, path := range []string{"/data", "/secrets", "/etc/redleaf"} {
				if !mounts[path] {
					t.Errorf("%s is not mounted", path)
				}
			}
			// What the container would run, with the environment as the kubelet fills it in.
			var args, env []string
			for _, a := range at(container, "args").([]any) {
				args = append(args, text(a))
			}
			if i := slices.Index(args, "-c"); i < 0 || args[i+1] != "/etc/redleaf/redleaf.toml" {
				t.Fatalf("the settings are not read: %q", args)
			} else {
				args = slices.Delete(args, i, i+2)
			}
			fill := strings.NewReplacer("$(POD_NAME)", "redleaf-0", "$(POD_IP)", "10.1.2.3")
			list, _ := at(container, "env").([]any)
			for _, e := range list {
				if v := text(at(e, "value")); v != "" {
					env = append(env, text(at(e, "name"))+"="+fill.Replace(v))
				}
			}
			effective := check(t, toml, args, env)
			has(t, c.file, effective, `listen = [":6380"]`, `admin.listen = ":6381"`, `data_dir = "/data"`, `segment.store = "mysql"`, `snowflake.registry = "zookeeper"`)
			if !strings.Contains(effective, `auth.password_file = "/`) {
				t.Error("it listens beyond loopback without a password")
			}
			if c.kind == "Job" {
				if at(set, "spec", "backoffLimit") != 0 || at(set, "spec", "ttlSecondsAfterFinished") != nil || text(at(pod, "restartPolicy")) != "Never" || !slices.Contains(args, "-bootstrap") {
					t.Error("the bootstrap may run more than once")
				}
				return
			}
			has(t, c.file, effective, map[string]string{"StatefulSet": `snowflake.node = "redleaf_0:6380"`, "Deployment": `snowflake.node = "10.1.2.3:6380"`}[c.kind])
			for probe, path := range map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"} {
				if text(at(container, probe, "httpGet", "path")) != path || text(at(container, probe, "httpGet", "port")) != "admin" {
					t.Errorf("%s does not ask %s", probe, path)
				}
			}
			// The pause before the stop, the drain (10 s) and some air.
			grace, _ := at(pod, "terminationGracePeriodSeconds").(int)
			pause, _ := at(container, "lifecycle", "preStop", "sleep", "seconds").(int)
			if pause < 3 || grace < pause+10+5 {
				t.Errorf("%d s of grace for a pause of %d s and a drain of 10 s", grace, pause)
			}
			match := at(set, "spec", "selector", "matchLabels", "app.kubernetes.io/name")
			for what, got := range map[string]any{
				"the pods' label": at(set, "spec", "template", "metadata", "labels", "app.kubernetes.io/name"), "the service": at(service, "spec", "selector", "app.kubernetes.io/name"),
				"the disruption budget": at(kinds["PodDisruptionBudget"], "spec", "selector", "matchLabels", "app.kubernetes.io/name"),
			} {
				if got != match {
					t.Errorf("%s is %v, the set's selector %v", what, got, match)
				}
			}
		})
	}
	t.Run("a disk of its own", func(t *testing.T) {
		for _, d := range documents(t, "kubernetes/statefulset.yaml") {
			if d["kind"] == "StatefulSet" && at(d, "spec", "volumeClaimTemplates", 0, "spec", "accessModes", 0) != "ReadWriteOncePod" {
				t.Error("two pods could mount one data directory")
			}
		}
	})
}
