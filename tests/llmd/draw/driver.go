// Draws snapshots and tells what llm-d's own filters and scorers make of them, one JSON object a line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/datalayer"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/plugin"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/scheduling"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/datalayer/attribute/concurrency"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/datalayer/attribute/prefix"
	requests "github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/flowcontrol/saturationdetector/concurrency"
	usage "github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/requestcontrol/dataproducer/prefixhash"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/filter/bylabel"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/filter/prefixcacheaffinity"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/filter/utilization"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/activerequest"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/headerlabelaffinity"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/kvcacheutilization"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/loadaware"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/loraaffinity"
	scorer "github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/prefix"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/queuedepth"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/runningrequests"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/scheduling/scorer/tokenload"
)

const blockTokens, seed, cases = 64, 28, 10_000

type factory = func(string, *json.Decoder, plugin.Handle) (plugin.Plugin, error)

var factories = map[string]factory{
	"active-request-scorer":        activerequest.Factory,
	"concurrency-detector":         requests.ConcurrencyDetectorFactory,
	"decode-filter":                bylabel.DecodeRoleFactory,
	"header-label-affinity-scorer": headerlabelaffinity.Factory,
	"kv-cache-utilization-scorer":  kvcacheutilization.KvCacheUtilizationScorerFactory,
	"load-aware-scorer":            loadaware.Factory,
	"lora-affinity-scorer":         loraaffinity.LoraAffinityScorerFactory,
	"prefix-cache-affinity-filter": prefixcacheaffinity.Factory,
	"prefix-cache-scorer":          scorer.PrefixCachePluginFactory,
	"queue-scorer":                 queuedepth.QueueScorerFactory,
	"running-requests-size-scorer": runningrequests.RunningRequestsSizeScorerFactory,
	"token-load-scorer":            tokenload.TokenLoadScorerFactory,
	"utilization-detector":         usage.UtilizationDetectorFactory,
	"utilization-filter":           utilization.Factory,
}

// Profiles: TYPE, TYPE=WEIGHT or TYPE{PARAMETERS}=WEIGHT, in order.
var profiles = []string{
	`queue-scorer=2; kv-cache-utilization-scorer=2; prefix-cache-scorer=3`,
	`prefix-cache-affinity-filter{"affinityThreshold": 0.6, "maxTTFTPenaltyMs": 1000, "peakPrefillThroughput": 4000}; decode-filter; token-load-scorer{"queueThresholdTokens": 8000}=1`,
	`decode-filter; utilization-detector{"metricsStalenessThreshold": "60s", "headroom": 0.2}; active-request-scorer{"idleThreshold": 2, "maxBusyScore": 0.5}=1.5; running-requests-size-scorer=0.5`,
	`utilization-filter{"fallbackOnEmpty": true, "conditions": [{"metric": "waiting-queue", "maxValue": 4}, {"metric": "kv-cache-utilization", "maxValue": 0.7}]}; prefix-cache-scorer{"matchLengthWeight": 0.4, "matchLengthScaleTokens": 300}=0.7; load-aware-scorer{"threshold": 4}=-1`,
	`utilization-filter{"conditions": [{"metric": "active-requests", "maxValue": 5}, {"metric": "kv-cache-utilization", "maxValue": 0.9}]}; decode-filter; queue-scorer=0.25; kv-cache-utilization-scorer=1`,
	`lora-affinity-scorer=1; header-label-affinity-scorer{"headerName": "x-tier", "labelKey": "llm-d.ai/role"}=2; prefix-cache-scorer=1`,
	`concurrency-detector{"maxConcurrency": 6, "concurrencyMode": "hybrid", "maxTokenConcurrency": 3000, "headroom": 0.1}; decode-filter; prefix-cache-scorer=1; kv-cache-utilization-scorer=1`,
	`decode-filter; prefix-cache-affinity-filter{"affinityThreshold": 0.5, "maxTTFTPenaltyMs": 0}; queue-scorer=1; prefix-cache-scorer=5`,
}

type part struct {
	Type       string          `json:"type"`
	Parameters json.RawMessage `json:"parameters,omitempty"`
	weight     float64
	made       plugin.Plugin
}

type handle struct{}

func (handle) Context() context.Context        { return context.Background() }
func (handle) Metrics() plugin.MetricsRecorder { return nil }

func read(profile string) []part {
	var parts []part
	for _, text := range strings.Split(profile, "; ") {
		found := part{Type: text}
		if at := strings.LastIndex(text, "="); at > strings.LastIndex(text, "}") {
			found.weight, _ = strconv.ParseFloat(text[at+1:], 64)
			found.Type = text[:at]
		}
		if kind, rest, ok := strings.Cut(found.Type, "{"); ok {
			found.Type, found.Parameters = kind, json.RawMessage("{"+rest)
		}
		var decoder *json.Decoder
		if found.Parameters != nil {
			decoder = json.NewDecoder(strings.NewReader(string(found.Parameters)))
		}
		made, err := factories[found.Type](found.Type, decoder, handle{})
		if err != nil {
			panic(err)
		}
		found.made = made
		parts = append(parts, found)
	}
	return parts
}

func config(parts []part) map[string]any {
	references := []map[string]any{}
	for _, each := range parts {
		reference := map[string]any{"pluginRef": each.Type}
		if _, ok := each.made.(scheduling.Scorer); ok {
			reference["weight"] = each.weight
		}
		references = append(references, reference)
	}
	return map[string]any{
		"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": parts,
		"schedulingProfiles": []any{map[string]any{"name": "default", "plugins": references}},
	}
}

type endpoint struct {
	datalayer.AttributeMap
	metadata *datalayer.EndpointMetadata
	metrics  *datalayer.Metrics
}

func (e *endpoint) GetMetadata() *datalayer.EndpointMetadata { return e.metadata }
func (e *endpoint) GetMetrics() *datalayer.Metrics           { return e.metrics }
func (e *endpoint) String() string                           { return e.metadata.Name }

// Roles that endpoints may have; the first is none.
var roles = []string{"", "decode", "prefill", "prefill-decode", "encode"}

// One endpoint as drawn: what it holds of the prompt in tokens, its metrics (null where there are none, -1 for NaN).
type drawn struct {
	held, role, requests, pending int
	metrics                       *[3]int // waiting, running, KV cache in percent
	stale                         bool
	active, loading               []int
	most                          int
}

func some(random *rand.Rand) []int {
	found := []int{}
	for number := 0; number < 4; number++ {
		if random.Intn(4) == 0 {
			found = append(found, number)
		}
	}
	return found
}

func draw(random *rand.Rand, tokens int, odd bool) drawn {
	found := drawn{role: random.Intn(len(roles)), requests: random.Intn(9), pending: random.Intn(5) * random.Intn(1000)}
	switch random.Intn(4) {
	case 0:
		found.held = random.Intn(tokens + 1)
	case 1:
		found.held = tokens
	case 2:
		found.held = tokens / blockTokens * blockTokens
	}
	found.active, found.loading, found.most = some(random), some(random), random.Intn(4)
	if random.Intn(12) == 0 {
		return found // without metrics
	}
	found.metrics, found.stale = &[3]int{random.Intn(8) * random.Intn(3), random.Intn(12), random.Intn(101)}, random.Intn(8) == 0
	if odd && random.Intn(3) == 0 {
		found.metrics[2] = -1
	}
	return found
}

func tokens(count int) []uint32 {
	ids := make([]uint32, count)
	for place := range ids {
		ids[place] = uint32(place)
	}
	return ids
}

func hashes(ids []uint32) []prefixhash.BlockHash {
	body := &scheduling.Body{TokenizedRequest: &scheduling.Tokens{Prompts: []scheduling.Prompt{{TokenIDs: ids}}}}
	found := prefixhash.GetBlockHashes(context.Background(), &scheduling.InferenceRequest{Body: body}, blockTokens, math.MaxInt)
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

func build(number int, from drawn, asked []prefixhash.BlockHash, prompt int, now time.Time) *endpoint {
	held, match := hashes(tokens(from.held)), 0
	for match < min(len(held), len(asked)) && held[match] == asked[match] {
		match++
	}
	made := &endpoint{
		datalayer.NewAttributes(),
		&datalayer.EndpointMetadata{Name: strconv.Itoa(number), Labels: map[string]string{}},
		datalayer.NewMetrics(),
	}
	if from.role > 0 {
		made.metadata.Labels["llm-d.ai/role"] = roles[from.role]
	}
	made.metrics.MaxActiveModels = from.most
	for _, model := range from.active {
		made.metrics.ActiveModels[fmt.Sprint("m", model)] = 1
	}
	for _, model := range from.loading {
		made.metrics.WaitingModels[fmt.Sprint("m", model)] = 1
	}
	if from.metrics != nil {
		made.metrics.UpdateTime = now
		if from.stale {
			made.metrics.UpdateTime = now.Add(-2 * time.Hour)
		}
		made.metrics.WaitingQueueSize, made.metrics.RunningRequestsSize = from.metrics[0], from.metrics[1]
		made.metrics.KVCacheUsagePercent = float64(from.metrics[2]) / 100
		if from.metrics[2] < 0 {
			made.metrics.KVCacheUsagePercent = math.NaN()
		}
	}
	made.Put(prefix.PrefixCacheMatchInfoDataKey, prefix.NewPrefixCacheMatchInfo(match, len(asked), blockTokens))
	load := &concurrency.InFlightLoad{Tokens: int64(from.pending), Requests: int64(from.requests)}
	made.Put(concurrency.InFlightLoadDataKey, load)
	uncached := int64(max(prompt-match*blockTokens, 0))
	made.Put(concurrency.UncachedRequestTokensDataKey, &concurrency.UncachedRequestTokens{Tokens: uncached})
	return made
}

// Filters in their order, then the sum of scores by weight, each kept within 0 and 1.
func run(parts []part, request *scheduling.InferenceRequest, all []scheduling.Endpoint) map[scheduling.Endpoint]float64 {
	left, total := all, map[scheduling.Endpoint]float64{}
	for _, each := range parts {
		if filter, ok := each.made.(scheduling.Filter); ok && len(left) > 0 {
			left = filter.Filter(context.Background(), request, left)
		}
	}
	for _, each := range parts {
		if scorer, ok := each.made.(scheduling.Scorer); ok && len(left) > 0 {
			for endpoint, score := range scorer.Score(context.Background(), request, left) {
				if score < 0 {
					score = 0
				} else if score > 1 {
					score = 1
				}
				total[endpoint] += score * each.weight
			}
		}
	}
	return total
}

func main() {
	random, out := rand.New(rand.NewSource(seed)), bufio.NewWriter(os.Stdout)
	encode := json.NewEncoder(out)
	defer out.Flush()
	made, configs := [][]part{}, []any{}
	for _, profile := range profiles {
		made = append(made, read(profile))
		configs = append(configs, config(made[len(made)-1]))
	}
	encode.Encode(map[string]any{"commit": os.Args[1], "block_tokens": blockTokens, "seed": seed, "roles": roles, "configs": configs})
	for number := 0; number < cases; number++ {
		chosen, prompt, tier := random.Intn(len(profiles)), random.Intn(900), random.Intn(len(roles))
		count, odd := 2+random.Intn(5), random.Intn(20) == 0
		if number%10 == 0 {
			count = 1
		} else if number%200 == 1 {
			count = 200
		}
		request := &scheduling.InferenceRequest{TargetModel: "m0", Headers: map[string]string{"x-tier": roles[tier]}}
		asked, now := hashes(tokens(prompt)), time.Now()
		rows, endpoints := [][]any{}, []scheduling.Endpoint{}
		for place := 0; place < count; place++ {
			from := draw(random, prompt, odd)
			rows = append(rows, []any{from.held, from.role, from.requests, from.pending, from.metrics, from.stale, from.active, from.loading, from.most})
			endpoints = append(endpoints, build(place, from, asked, prompt, now))
		}
		total, scores := run(made[chosen], request, endpoints), make([]any, count)
		for place, each := range endpoints {
			if score, ok := total[each]; ok && math.IsNaN(score) {
				scores[place] = "NaN"
			} else if ok {
				scores[place] = math.Round(score*1e11) / 1e11
			}
		}
		encode.Encode([]any{chosen, prompt, tier, rows, scores})
	}
}
