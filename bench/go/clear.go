// The CPU clearing in Go, straightforward: the equations of docs/reference/decide-cpu-clear.md in
// float64 and int64, as one would write them first. A yardstick for bench/compiled.py, no product:
// levels and remainders are rounded doubles, so a tie may fall on another pod than in core.
package main

import (
	"math"
	"sort"
)

const survivalMillicores = 10

// Pod is one claimant; a nil pointer means unknown.
type Pod struct {
	UID            string  `json:"uid"`
	Min            int64   `json:"min_millicores"`
	Max            int64   `json:"max_millicores"`
	Demand         float64 `json:"demand"`
	Weight         float64 `json:"weight"`
	Usage          *int64  `json:"usage_millicores"`
	Current        *int64  `json:"current_millicores"`
	HeadroomMisses int64   `json:"headroom_misses"`
	SignalOK       bool    `json:"signal_ok"`
	Lower          *int64  `json:"lower_millicores"`
	Upper          *int64  `json:"upper_millicores"`
}

// Node is all that a clearing looks at.
type Node struct {
	Capacity     int64   `json:"capacity_millicores"`
	Policy       string  `json:"policy"`
	PreviousMode string  `json:"previous_mode"`
	Band         float64 `json:"hysteresis_band"`
	Pods         []Pod   `json:"pods"`
}

// Plan is what each pod gets and why, by uid. A nil price: there is none.
type Plan struct {
	Mode        string
	Capacity    int64
	TotalMin    int64
	TotalNeed   int64
	ShadowPrice *float64
	Needs       map[string]int64
	Allocations map[string]int64
	Reduction   map[string]float64
	Reasons     map[string][]string
}

type seat struct {
	pod                          *Pod
	floor, need, low, high, want int64
	reasons                      []string
}

type claim struct {
	base, low, high int64
	rate            float64
}

// Clear divides the capacity of a node among its pods.
func Clear(node *Node) Plan {
	seats := make([]seat, len(node.Pods))
	order := make([]*Pod, len(node.Pods))
	for i := range node.Pods {
		order[i] = &node.Pods[i]
	}
	sort.Slice(order, func(a, b int) bool { return order[a].UID < order[b].UID })
	var totalMin, totalLow, totalNeed int64
	for i, pod := range order {
		seats[i] = take(pod)
		totalMin += seats[i].floor
		totalLow += seats[i].low
		totalNeed += seats[i].need
	}
	lows := make([]int64, len(seats))
	for i := range seats {
		lows[i] = seats[i].low
	}
	mode := "overloaded"
	var grants []int64
	var price *float64
	if totalMin > node.Capacity {
		grants = scaleMinimums(node.Capacity, seats)
	} else {
		if totalLow > node.Capacity {
			relax(node.Capacity-totalMin, seats)
		}
		var totalWant int64
		for i := range seats {
			totalWant += seats[i].want
		}
		mode = label(totalWant, node)
		grants, price = divide(node, seats, totalWant)
	}
	plan := Plan{
		Mode: mode, Capacity: node.Capacity, TotalMin: totalMin, TotalNeed: totalNeed, ShadowPrice: price,
		Needs:       make(map[string]int64, len(seats)),
		Allocations: make(map[string]int64, len(seats)),
		Reduction:   make(map[string]float64, len(seats)),
		Reasons:     make(map[string][]string, len(seats)),
	}
	for i := range seats {
		s, uid := &seats[i], seats[i].pod.UID
		plan.Needs[uid], plan.Allocations[uid] = s.need, grants[i]
		plan.Reduction[uid] = 0
		if s.need > s.floor {
			plan.Reduction[uid] = float64(s.need-grants[i]) / float64(s.need-s.floor)
		}
		if grants[i] < lows[i] && lows[i] > s.floor {
			s.reasons = append(s.reasons, "guardrail-relaxed")
		}
		plan.Reasons[uid] = s.reasons
	}
	return plan
}

func take(pod *Pod) seat {
	floor := min(pod.Min, pod.Max)
	value, reason := need(pod, floor)
	reasons := []string{reason}
	if pod.Min > pod.Max {
		reasons = []string{"min-above-max", reason}
	}
	needed, high, low := clamp(value, floor, pod.Max), pod.Max, floor
	if pod.Upper != nil {
		high = clamp(*pod.Upper, floor, pod.Max)
	}
	if pod.Lower != nil {
		low = clamp(*pod.Lower, floor, high)
	}
	return seat{pod, floor, needed, low, high, clamp(needed, low, high), reasons}
}

func need(pod *Pod, floor int64) (int64, string) {
	if !pod.SignalOK {
		if pod.Usage != nil {
			return int64(float64(*pod.Usage) * 1.3), "signal-missing.usage"
		}
		if pod.Current != nil {
			return *pod.Current, "signal-missing.hold"
		}
		return floor, "signal-missing.min"
	}
	if pod.Demand == 0 && pod.Usage != nil && float64(*pod.Usage) > 0.9*float64(floor) {
		return int64(float64(*pod.Usage) * 1.3), "usage-fallback"
	}
	raw := floor + int64(float64(pod.Max-floor)*pod.Demand)
	factor := math.Min(0.50, 0.10+0.15*pod.Demand+0.05*float64(pod.HeadroomMisses))
	return raw + int64(float64(raw)*factor), "demand-driven"
}

func label(totalWant int64, node *Node) string {
	leavesAt := float64(node.Capacity) * (1 - node.Band)
	if totalWant > node.Capacity || (node.PreviousMode == "congested" && float64(totalWant) > leavesAt) {
		return "congested"
	}
	return "uncongested"
}

func relax(spare int64, seats []seat) {
	claims := make([]claim, len(seats))
	for i, s := range seats {
		claims[i] = claim{0, 0, s.low - s.floor, float64(s.low - s.floor)}
	}
	extra, _ := fill(spare, claims)
	for i := range seats {
		s := &seats[i]
		s.low = s.floor + extra[i]
		s.want = clamp(s.need, s.low, s.high)
	}
}

func scaleMinimums(capacity int64, seats []seat) []int64 {
	share := capacity / int64(len(seats))
	claims := make([]claim, len(seats))
	for i, s := range seats {
		claims[i] = claim{0, min(survivalMillicores, share, s.pod.Max), s.pod.Max, float64(s.floor)}
	}
	grants, _ := fill(capacity, claims)
	return grants
}

func divide(node *Node, seats []seat, totalWant int64) ([]int64, *float64) {
	claims := make([]claim, len(seats))
	var nothing float64
	if node.Policy == "market" {
		return market(node.Capacity, seats, claims)
	}
	if totalWant <= node.Capacity {
		grants := make([]int64, len(seats))
		for i, s := range seats {
			grants[i] = s.want
		}
		return grants, &nothing
	}
	if node.Policy == "demand-capped" {
		for i, s := range seats {
			claims[i] = claim{s.floor, s.low, s.high, float64(s.need - s.floor)}
		}
		grants, _ := fill(node.Capacity, claims)
		return grants, nil
	}
	for i, s := range seats {
		claims[i] = claim{s.floor, s.low, s.want, s.pod.Weight}
	}
	grants, level := fill(node.Capacity, claims)
	if math.IsInf(level, 1) { // every pod with a weight is satisfied: those of weight 0 share the rest
		for i, s := range seats {
			if s.pod.Weight > 0 {
				claims[i] = claim{grants[i], grants[i], grants[i], 0}
			} else {
				claims[i] = claim{s.floor, s.low, s.want, 1}
			}
		}
		grants, _ = fill(node.Capacity, claims)
		return grants, &nothing
	}
	return grants, priceOf(level)
}

func market(capacity int64, seats []seat, claims []claim) ([]int64, *float64) {
	var total, weights float64
	for _, s := range seats {
		total += s.pod.Weight * s.pod.Demand
		weights += s.pod.Weight
	}
	for i, s := range seats {
		rate := 1.0
		if total > 0 {
			rate = s.pod.Weight * s.pod.Demand
		} else if weights > 0 {
			rate = s.pod.Weight
		}
		claims[i] = claim{s.floor, s.low, s.high, rate}
	}
	grants, level := fill(capacity, claims)
	if math.IsInf(level, 1) {
		var nothing float64
		return grants, &nothing
	}
	return grants, priceOf(level)
}

func priceOf(level float64) *float64 {
	if level == 0 {
		return nil
	}
	price := 1 / level
	return &price
}

type event struct{ at, rate, offset float64 }

// fill solves sum clamp(base + rate*t, low, high) = total for t, by a sweep over the points where a
// claim starts or stops to rise; whole grants by largest remainder. The level is infinite where all
// claims that rise stand at their upper bounds and something is left.
func fill(total int64, claims []claim) ([]int64, float64) {
	grants := make([]int64, len(claims))
	events := make([]event, 0, 2*len(claims))
	var rate, offset float64 // taken so far: rate*t + offset
	for i, c := range claims {
		grants[i] = clamp(c.base, c.low, c.high)
		offset += float64(grants[i])
		if c.rate == 0 || grants[i] >= c.high {
			continue
		}
		events = append(events, event{float64(c.high-c.base) / c.rate, -c.rate, float64(c.high - c.base)})
		if grants[i] > c.base {
			start := float64(c.low - c.base)
			events = append(events, event{start / c.rate, c.rate, -start})
		} else {
			rate += c.rate
		}
	}
	sort.Slice(events, func(a, b int) bool { return events[a].at < events[b].at })
	level := math.Inf(1)
	if offset >= float64(total) {
		level = 0
	} else {
		for _, e := range events {
			if rate > 0 && float64(total)-offset <= rate*e.at {
				level = (float64(total) - offset) / rate
				break
			}
			rate += e.rate
			offset += e.offset
		}
	}
	left := total
	rests := make([]float64, len(claims))
	for i, c := range claims {
		if c.rate == 0 {
			left -= grants[i]
			continue
		}
		x := float64(c.base) + c.rate*level
		switch whole := math.Floor(x); {
		case x >= float64(c.high):
			grants[i] = c.high
		case x < float64(c.low):
			grants[i] = c.low
		default:
			grants[i], rests[i] = int64(whole), x-whole
		}
		left -= grants[i]
	}
	if !math.IsInf(level, 1) && left > 0 {
		settle(left, grants, rests, claims)
	}
	return grants, level
}

func settle(left int64, grants []int64, rests []float64, claims []claim) {
	byRest := make([]int, len(rests))
	for i := range byRest {
		byRest[i] = i
	}
	sort.SliceStable(byRest, func(a, b int) bool { return rests[byRest[a]] > rests[byRest[b]] })
	for _, i := range byRest {
		if left > 0 && grants[i] < claims[i].high {
			grants[i]++
			left--
		}
	}
}

func clamp(value, low, high int64) int64 { return min(max(value, low), high) }
