package testkit

import "testing"

// The server has another replica already, which does not stand for a new one.
func TestStartReplicaWaitsForItsReplica(t *testing.T) {
	t.Parallel()
	master := StartRedis(t)
	for n := range 3 {
		replica := StartReplica(t, master)
		if status := replica.replication()["master_link_status"]; status != "up" {
			t.Errorf("replica %d: link %s, want up", n+1, status)
		}
		reply := master.MustDo("WAIT", "0", "0")
		if counted, err := reply.AsInt64(); err != nil || counted != int64(n+1) {
			t.Errorf("the server counts %d replicas, %v; want %d", counted, err, n+1)
		}
	}
}
