// Queues and dispatch: depths, providers, one job, and dead letters.
import { html, useEffect, useState } from "./vendor/preact.js";
import { add, clock, duration, get, last, mean, metric, number, post, whole } from "./api.js";
import { Sparkline } from "./chart.js";
import { ActionForm, Badge, Dialog, Empty, Panel, Problem, Table, useLoaded } from "./parts.js";

const STATES = ["ready", "delayed", "in_flight", "dead"];

/** Returns the names of all queues. Some brokers do not tell their depths. */
function queueNames(series, metrics) {
  const depths = metric(series, "sluicegate_queue_depth").map(([[queue]]) => queue);
  const counters = metrics.filter((one) => one.name === "sluicegate_queue_messages_total").map((one) => one.labels.queue);
  return [...new Set([...depths, ...counters])];
}

function Depths({ series, names, choose }) {
  const depths = metric(series, "sluicegate_queue_depth");
  const of = (queue, state) => depths.find(([[name, kind]]) => name === queue && kind === state)?.[1];
  const oldest = (queue) => metric(series, "sluicegate_queue_oldest_seconds").find(([[name]]) => name === queue)?.[1];
  const rows = names.map((queue) => {
    const dead = last(of(queue, "dead"));
    const waiting = add(["ready", "delayed"].map((state) => of(queue, state) ?? []));
    return [
      html`<b class="wrap">${queue}</b>`,
      ...STATES.map((state) => {
        const values = of(queue, state);
        if (!values) return html`<span class="soft">–</span>`;
        return state === "dead" && dead > 0 ? html`<button type="button" class="link red" onClick=${() => choose(queue)}>${whole(dead)}</button>` : whole(last(values));
      }),
      oldest(queue) ? duration(last(oldest(queue))) : html`<span class="soft">–</span>`,
      html`<${Sparkline} values=${waiting} color="info" label=${`messages that wait in ${queue}`} />`,
    ];
  });
  return html`<${Table} label="Queues" columns=${[["queue"], ["ready", "num"], ["delayed", "num"], ["in flight", "num"], ["dead letters", "num"], ["oldest", "num"], ["waiting"]]} rows=${rows} empty="no queue yet" />`;
}

function Providers({ series, metrics }) {
  const names = [...new Set(metrics.filter((one) => one.labels.provider).map((one) => one.labels.provider))];
  const total = (name, provider) => metrics.find((one) => one.name === name && one.labels.provider === provider)?.value ?? 0;
  const rate = (name, provider) => metric(series, name).find(([[label]]) => label === provider)?.[1] ?? [];
  const rpm = (provider, tier) => metrics.find((one) => one.name === "sluicegate_provider_rpm" && one.labels.provider === provider && one.labels.tier === tier)?.value;
  const rows = names.map((provider) => {
    const done = rate("sluicegate_worker_done_total", provider);
    const failed = total("sluicegate_worker_failed_total", provider);
    return [
      html`<b>${provider}</b>`,
      number(rpm(provider, "dispatch") ?? null),
      number(rpm(provider, "worker") ?? null),
      whole(total("sluicegate_dispatch_delayed_total", provider)),
      whole(total("sluicegate_worker_requeued_total", provider)),
      whole(total("sluicegate_worker_busy", provider)),
      whole(total("sluicegate_worker_done_total", provider)),
      html`<span class=${failed > 0 ? "red" : ""}>${whole(failed)}</span>`,
      whole(total("sluicegate_worker_dead_total", provider)),
      html`<${Sparkline} values=${done} label=${`${provider} jobs done`} />`,
    ];
  });
  const columns = [["provider"], ["dispatched/min", "num"], ["worked/min", "num"], ["delayed", "num"], ["deferred", "num"], ["busy", "num"], ["done", "num"], ["failed", "num"], ["dead", "num"], ["done/s"]];
  return html`<${Table} label="Providers" columns=${columns} rows=${rows} empty="no provider yet" />`;
}

/** Returns the time until all queues are empty at the current rate. */
function estimatedEnd(series, step) {
  const depths = metric(series, "sluicegate_queue_depth").filter(([[, state]]) => state !== "dead");
  if (depths.length === 0) return "";
  const left = depths.reduce((sum, [, values]) => sum + last(values), 0);
  const rate = metric(series, "sluicegate_worker_done_total").reduce((sum, [, values]) => sum + (mean(values, 30, step) ?? 0), 0);
  if (left === 0) return "the queues are empty";
  return rate > 0 ? `empty in ${duration(left / rate)} at ${number(rate)}/s` : `${whole(left)} messages, none is being done`;
}

function Job() {
  const [id, setId] = useState("");
  const [state, setState] = useState({});
  const submit = async (event) => {
    event.preventDefault();
    try {
      setState({ job: await get(`/v1/jobs/${encodeURIComponent(id.trim())}`) });
    } catch (error) {
      setState({ error: error.message });
    }
  };
  const { job, error } = state;
  return html`<div class="body form">
    <form class="row" onSubmit=${submit}>
      <label for="job">Job id</label><input id="job" required size="30" autocomplete="off" value=${id} onInput=${(event) => setId(event.target.value)} /><button class="primary">Why?</button>
    </form>
    <${Problem} text=${error} />
    ${job &&
    html`<${Table} label="Job" columns=${[["job"], [job.job, "key"]]} rows=${[
      ["last event", html`<${Badge} color=${job.event === "done" ? "green" : job.event === "dead" ? "red" : ""}>${job.event}<//> at ${clock(job.at)}`],
      ["queue", job.queue],
      ["provider", job.provider ?? "none"],
      ["waits until", job.until ? clock(job.until) : "does not wait"],
      ["failed attempts", whole(job.failed_attempts)],
      ["deferrals", whole(job.deferrals)],
      ["error", job.error ? html`<span class="error">${job.error}</span>` : "none"],
    ]} />`}
    ${job?.earlier?.length > 0 &&
    html`<${Table} label="Earlier events of the job" columns=${[["at"], ["event"], ["queue"], ["error"]]} rows=${job.earlier.map((past) => [
      clock(past.at),
      past.event,
      past.queue,
      past.error ? html`<span class="error">${past.error}</span>` : "",
    ])} />`}
  </div>`;
}

function Letters({ queues, chosen, choose, admin }) {
  const [filter, setFilter] = useState({ type: "", error: "", job: "", olderThan: "" });
  const [shown, setShown] = useState(null);
  const [selected, setSelected] = useState(new Set());
  const [open, setOpen] = useState(null);
  const [change, setChange] = useState(null);
  const given = Object.fromEntries(Object.entries(filter).filter(([, value]) => value.trim()));
  const load = async () => {
    if (!chosen) return;
    try {
      setShown(await get(`/v1/dashboard/dead-letters?${new URLSearchParams({ queue: chosen, ...given })}`));
    } catch (error) {
      setShown({ error: error.message, letters: [] });
    }
  };
  useEffect(() => {
    setSelected(new Set());
    load();
  }, [chosen]);
  const submit = (event) => {
    event.preventDefault();
    setSelected(new Set());
    load();
  };
  const jobOf = (letter) => String(letter.job);
  const letters = shown?.letters ?? [];
  const toggle = (job) => {
    const next = new Set(selected);
    if (!next.delete(job)) next.add(job);
    setSelected(next);
  };
  const start = async (kind, jobs) => {
    const { job, ...others } = given;
    const wanted = jobs ?? (job ? [job] : undefined);
    const body = { queue: chosen, ...others, ...(wanted ? { jobs: wanted } : {}) };
    try {
      const { count } = await post(`/v1/dashboard/dead-letters/${kind}`, { ...body, dryRun: true });
      setChange({ kind, body, count });
    } catch (error) {
      setShown({ ...shown, error: error.message });
    }
  };
  const field = (name, label, size) => html`<div class="field"><label for=${`letter-${name}`}>${label}</label><input id=${`letter-${name}`} size=${size} autocomplete="off" value=${filter[name]} onInput=${(event) => setFilter({ ...filter, [name]: event.target.value })} /></div>`;
  const rows = letters.map((letter) => {
    const job = jobOf(letter);
    const died = letter.died ?? {};
    return [
      admin ? html`<input type="checkbox" aria-label=${`Select ${job}`} checked=${selected.has(job)} onChange=${() => toggle(job)} />` : "",
      html`<button type="button" class="link mono" onClick=${() => setOpen(letter)}>${job}</button>`,
      html`<span class="wrap">${String(died.queue ?? "")}</span>`,
      String(letter.type ?? ""),
      html`<span class="wrap">${String(died.message ?? "dead-lettered by the broker").slice(0, 160)}</span>`,
      whole(died.attempts),
      died.at ? clock(died.at) : "",
    ];
  });
  return html`<div class="body form">
      <form class="row bottom" onSubmit=${submit}>
        <div class="field"><label for="letter-queue">Queue</label><select id="letter-queue" value=${chosen ?? ""} onChange=${(event) => choose(event.target.value || null)}><option value="">choose a queue</option>${queues.map((name) => html`<option value=${name}>${name}</option>`)}</select></div>
        ${field("type", "Type", 12)} ${field("error", "Error contains", 16)} ${field("job", "Job id", 14)} ${field("olderThan", "Older than", 8)}
        <button>Filter</button>
      </form>
      <${Problem} text=${shown?.error} />
      ${admin &&
      chosen &&
      html`<div class="row">
        <button type="button" disabled=${selected.size === 0} onClick=${() => start("replay", [...selected])}>Replay ${selected.size} selected</button>
        <button type="button" class="danger" disabled=${selected.size === 0} onClick=${() => start("delete", [...selected])}>Delete ${selected.size} selected</button>
        <button type="button" disabled=${letters.length === 0} onClick=${() => start("replay")}>Replay all that match</button>
        <button type="button" class="danger" disabled=${letters.length === 0} onClick=${() => start("delete")}>Delete all that match</button>
      </div>`}
    </div>
    ${chosen && shown && html`<${Table} label="Dead letters" columns=${[["select"], ["job"], ["failed in"], ["type"], ["error"], ["attempts", "num"], ["failed at"]]} rows=${rows} empty="no dead letter matches" />`}
    ${chosen && shown && letters.length > 0 && html`<div class="body soft small">${whole(letters.length)} shown${shown.all === null ? "" : ` of ${whole(shown.all)} in the dead-letter queue`}</div>`}
    ${open &&
    html`<${Dialog} title=${`Dead letter ${jobOf(open)}`} close=${() => setOpen(null)}>
      <pre tabindex="0">${JSON.stringify(open, null, 2)}</pre>
      <div class="row end"><button type="button" onClick=${() => setOpen(null)}>Close</button></div>
    <//>`}
    ${change &&
    html`<${Dialog} title=${change.kind === "replay" ? "Replay dead letters" : "Delete dead letters"} close=${() => setChange(null)}>
      <${ActionForm} label=${`${change.kind === "replay" ? "Replay" : "Delete"} ${whole(change.count)}`} danger=${change.kind === "delete"} close=${() => setChange(null)}
        done=${() => {
          setSelected(new Set());
          load();
        }}
        action=${async (reason) => {
          const { count } = await post(`/v1/dashboard/dead-letters/${change.kind}`, { ...change.body, reason });
          return `${whole(count)} dead letters ${change.kind === "replay" ? "replayed" : "deleted"}`;
        }}>
        <p><b>Dry run:</b> ${whole(change.count)} dead letters of <b>${change.body.queue}</b> match. ${change.kind === "replay" ? "They go back to the queue they failed in, with their original bodies." : "They are deleted for good."}</p>
      <//>
    <//>`}`;
}

export function Queues({ admin, view }) {
  const { live } = view;
  const [loaded, error] = useLoaded(view.isOwn ? "/v1/dashboard/metrics?names=sluicegate_worker_ sluicegate_dispatch_ sluicegate_provider_ sluicegate_queue_messages_total" : null);
  const metrics = (view.isOwn ? loaded?.metrics : view.summary?.metrics) ?? [];
  const [picked, choose] = useState(null);
  const withLetters = metric(live.series, "sluicegate_queue_depth").find(([[, state], values]) => state === "dead" && last(values) > 0);
  const chosen = picked ?? withLetters?.[0][0] ?? null;
  const queues = queueNames(live.series, metrics);
  const none = queues.length === 0;
  return html`<div class="head"><h1>Queues and dispatch</h1>${!none && html`<span class="soft">${estimatedEnd(live.series, live.step)}</span>`}</div>
    <${Problem} text=${error} />
    ${none
      ? html`<section class="panel"><${Empty}>No queue yet: ${view.isOwn ? "this process has" : "these nodes have"} neither <code>dispatch</code> nor <code>workers</code>, and no client has used its queue API.<//></section>`
      : html`<div class="grid">
          <${Panel} title="Queues"><${Depths} series=${live.series} names=${queues} choose=${choose} /><//>
          <${Panel} title="Providers" note="totals since the start of the process"><${Providers} series=${live.series} metrics=${metrics} /><//>
          <${Panel} title="Dead letters"><${Letters} queues=${queues} chosen=${chosen} choose=${choose} admin=${admin} /><//>
          <${Panel} title="One job" note="why does it not run?"><${Job} /><//>
        </div>`}`;
}
