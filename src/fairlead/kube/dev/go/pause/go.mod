module fairlead.dev/kube/pause

go 1.26.0
