// SPDX-License-Identifier: Apache-2.0
// The page of a bench run: the machine, every result, rooflines and how time scales with threads.
function svgEl(tag, attributes, ...children) {
  const node = document.createElementNS(kSvg, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, String(value));
  return add(node, ...children);
}

const kBenchSigns = {
  ok: 'pass',
  wrong: 'fail',
  refused: 'refused',
  unverified: 'unknown'
};

// Every result with its case, numbered: the number is its name in the pictures.
function benchRows(report) {
  const rows = [];
  recordsOf(report.cases)
      .forEach(
          (c, index) =>
              recordsOf(c.results).forEach((r) => rows.push({number: index + 1, of: c, r, seconds: recordOf(r.seconds)})));
  return rows;
}
const caseName = (c) => [textOf(c.name), textOf(c.line)].filter(Boolean).join('  ');
// No threads: a GPU, which is timed whole.
const threadsOf = (threads) => (threads === 0 ? '' : plural(numberOf(threads, 1), 'thread'));
const variantName = (r) => [textOf(r.kernel) || textOf(r.asked_kernel) || 'planned', threadsOf(r.threads),
                            r.batch_invariant === true && 'batch-invariant']
                               .filter(Boolean)
                               .join(', ');
const isTimed = (row) => numberOf(row.seconds.median) > 0;
const small = (seconds) => (seconds < 1e-3 ? `${short(seconds * 1e6)} \u00b5s` : duration(seconds));

function benchPage(report) {
  const rows = benchRows(report);
  return [
    benchVerdict(report, rows),
    resultsSection(rows),
    rooflineSection(recordsOf(report.ceilings), rows.filter(isTimed)),
    scalingSection(recordsOf(report.ceilings), rows.filter(isTimed)),
    ceilingsSection(recordsOf(report.ceilings)),
  ];
}

function benchVerdict(report, rows) {
  const busy = textOf(report.busy);
  const machine = recordOf(report.machine), count = (status) => rows.filter(({r}) => r.status === status).length;
  const wrong = count('wrong'), kind = wrong > 0 ? 'fail' : busy ? 'unknown' : report.ok === true && count('unverified') === 0 ? 'pass' : 'unknown';
  const why = wrong > 0 ?
      `${plural(wrong, 'result')} of ${whole(rows.length)} ${wrong === 1 ? 'is' : 'are'} wrong: do not use their times.` :
      busy ? `${busy[0].toUpperCase()}${busy.slice(1)}.` :
      count('unverified') > 0 ? 'Outputs were not compared with the reference.' :
                                'Every output that was timed is right.';
  const size = (bytes) => numberOf(bytes) > 0 && `${short(bytes / 1048576)} MiB`;
  return el(
      'div', {id: 'verdict'},
      el('div', {class: 'verdict'}, sign(kind),
         el('h1', {class: `tone-${kSigns[kind].tone}`},
            wrong > 0           ? 'wrong' :
                busy            ? 'verified, but the machine was busy' :
                kind === 'pass' ? 'verified' :
                                  'not verified'),
         el('p', {class: 'why'}, why)),
      facts([
        ['processor', machine.cpu], ['cores', machine.cores], ['instruction sets', machine.features],
        ['L2 per core', size(machine.l2_bytes)], ['L3', size(machine.l3_bytes)], ['compiler', machine.compiler],
        ['commit', report.commit], ['date', report.date], ['quire', report.version]
      ]));
}

function resultsSection(rows) {
  const of = (value) => ({cell: (row) => short(value(row)), sort: value, class: 'number'});
  const columns = [
    {title: '#', cell: (row) => String(row.number), sort: (row) => row.number, class: 'number'},
    {title: 'case', cell: (row) => caseName(row.of), sort: (row) => caseName(row.of), class: 'clip'},
    {title: 'variant', cell: (row) => variantName(row.r), sort: (row) => variantName(row.r)},
    {title: 'median', cell: (row) => small(row.seconds.median), sort: (row) => numberOf(row.seconds.median), class: 'number'},
    {title: '95 %', cell: (row) => `${small(row.seconds.low)} \u2013 ${small(row.seconds.high)}`, class: 'number wide'},
    {title: 'GB/s', ...of((row) => numberOf(row.r.gbs))},
    {title: 'GFLOP/s', ...of((row) => numberOf(row.r.gflops))},
    {title: 'of the machine', cell: (row) => percent(row.r.of_floor), sort: (row) => numberOf(row.r.of_floor), class: 'number'},
    {
      title: 'output',
      cell: (row) => badge(kBenchSigns[row.r.status] || 'unknown', textOf(row.r.status)),
      sort: (row) => textOf(row.r.status)
    },
  ];
  return section('results', 'Results', dataTable({label: 'Results', columns, rows, detail: resultDetail}).node);
}

function resultDetail(row) {
  const {r, of} = row, floor = recordOf(r.floor), rotation = recordOf(of.rotation);
  const part = (seconds, words) => numberOf(seconds) > 0 && `${small(seconds)} ${words}`;
  return el(
      'div', {}, commandLine('problem', textOf(of.line)), textOf(r.plan) && commandLine('plan', textOf(r.plan)),
      textOf(r.reason) && callout('fail', 'Why', el('p', {}, textOf(r.reason))), facts([
        [
          'floor',
          [
            part(floor.memory_seconds, `reading at ${short(floor.read_gbs)} GB/s`),
            part(floor.compute_seconds, `${textOf(floor.compute)} at ${short(floor.compute_gflops)} GFLOP/s`)
          ].filter(Boolean)
              .join(' + ')
        ],
        ['of the page gather', percent(r.of_gather)], ['K and V', `${short(numberOf(of.kv_bytes) / 1e6)} MB`],
        ['work', `${short(numberOf(of.flops) / 1e9)} GFLOP`], ['K and V come', textOf(rotation.kind)],
        ['plan()', small(numberOf(r.plan_seconds))],
        ['calls', `${whole(numberOf(r.calls))}, ${whole(numberOf(r.disturbed))} disturbed, ${textOf(r.clock)} clock`],
        [
          'compared',
          `${whole(numberOf(r.rows_compared))} of ${whole(numberOf(r.rows_total))} rows, ${short(r.worst_ratio)} of the tolerance`
        ]
      ]));
}

// A plane with logarithmic or linear axes. `ticks`: [value, text].
function plane({width, height, x, y, xTicks, yTicks, xLabel, yLabel, label}, ...children) {
  const left = 56, bottom = 40, top = 12, right = 16;
  const place = (axis, from, to) => (value) => {
    const f = axis.log ? Math.log : (v) => v;
    return from + (f(value) - f(axis.min)) / (f(axis.max) - f(axis.min)) * (to - from);
  };
  const px = place(x, left, width - right), py = place(y, height - bottom, top);
  const text = (at, words, anchor) => svgEl('text', {...at, 'text-anchor': anchor, class: 'tick'}, words);
  const grid = [
    ...xTicks.flatMap(
        ([value, words]) =>
            [svgEl('line', {x1: px(value), x2: px(value), y1: top, y2: height - bottom, class: 'grid'}),
             text({x: px(value), y: height - bottom + 16}, words, 'middle')]),
    ...yTicks.flatMap(
        ([value, words]) =>
            [svgEl('line', {x1: left, x2: width - right, y1: py(value), y2: py(value), class: 'grid'}),
             text({x: left - 6, y: py(value) + 4}, words, 'end')]),
    text({x: (left + width - right) / 2, y: height - 6}, xLabel, 'middle'),
    text({x: left, y: top - 2}, yLabel, 'start'),
  ];
  return svgEl(
      'svg', {viewBox: `0 -8 ${width} ${height + 8}`, class: 'plot', role: 'img', 'aria-label': label}, grid,
      children.map((child) => child(px, py)).flat(Infinity));
}
const path = (points, kind) => svgEl(
    'path',
    {d: points.map(([x, y], i) => `${i === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`).join(''), class: `curve ${kind}`});
function mark(x, y, row, words) {
  return svgEl(
      'g', {class: row.r.status === 'wrong' ? 'mark wrong' : 'mark'},
      svgEl('circle', {cx: x.toFixed(1), cy: y.toFixed(1), r: 4.5}, svgEl('title', {}, words)),
      svgEl('text', {x: (x + 7).toFixed(1), y: (y + 4).toFixed(1), class: 'tick'}, String(row.number)));
}
function decades(min, max) {
  const ticks = [];
  for (let value = 10 ** Math.ceil(Math.log10(min) - 1e-9); value <= max * 1.0001; value *= 10) ticks.push([value, short(value)]);
  return ticks;
}

const intensityOf = (row) => numberOf(row.of.flops) / Math.max(1, numberOf(row.of.kv_bytes));
const coldRead = (ceilings) => recordOf(recordsOf(ceilings.reads).slice(-1)[0]);

function roofline(ceilings, rows) {
  const read = numberOf(coldRead(ceilings).stream_gbs), gather = numberOf(coldRead(ceilings).gather_gbs);
  const roofs = [
    ['f32 FMA', ceilings.fma_gflops], ['bf16 dot', ceilings.bf16_dot_gflops], ['bf16 AMX', ceilings.amx_gflops],
    ['16-bit mma', ceilings.mma_gflops]
  ].filter(([, value]) => numberOf(value) > 0);
  const top = Math.max(1, ...roofs.map(([, value]) => value));
  const intensities = rows.map(intensityOf).filter((i) => i > 0),
        speeds = rows.map((row) => numberOf(row.r.gflops)).filter((s) => s > 0);
  if (read <= 0 || intensities.length === 0 || speeds.length === 0) return null;
  const ridge = top / read;
  const x = {log: true, min: Math.min(0.5, ...intensities) / 1.5, max: Math.max(ridge, ...intensities) * 3};
  const y = {log: true, min: Math.min(read * x.min, ...speeds) / 2, max: Math.max(top, ...speeds) * 1.6};
  const slanted = (px, py, gbs, kind) => path(
      [[px(x.min), py(Math.max(y.min, gbs * x.min))], [px(Math.min(x.max, top / gbs)), py(Math.min(top, gbs * x.max))]], kind);
  const flat = (px, py, [name, value]) =>
      [path([[px(Math.min(x.max, value / read)), py(value)], [px(x.max), py(value)]], 'roof'),
       svgEl('text', {x: px(x.max), y: py(value) - 5, 'text-anchor': 'end', class: 'tick'}, `${name} ${short(value)}`)];
  const points = (px, py) => rows.filter((row) => intensityOf(row) > 0 && numberOf(row.r.gflops) > 0)
                                 .map(
                                     (row) => mark(
                                         px(intensityOf(row)), py(row.r.gflops), row,
                                         `${row.number}: ${variantName(row.r)}, ${short(row.r.gflops)} GFLOP/s, ${
                                             percent(row.r.of_floor)} of the machine`));
  const threads = threadsOf(ceilings.threads) || 'the device';
  return el(
      'figure', {}, el('h3', {}, threads),
      plane(
          {
            width: 720,
            height: 380,
            x,
            y,
            xTicks: decades(x.min, x.max),
            yTicks: decades(y.min, y.max),
            xLabel: 'FLOP per byte of K and V',
            yLabel: 'GFLOP/s',
            label: `Roofline of ${threads}: ${short(read)} GB/s, up to ${short(top)} GFLOP/s; ${plural(rows.length, 'result')}`
          },
          (px, py) =>
              [slanted(px, py, read, 'roof'), gather > 0 && slanted(px, py, gather, 'gather'),
               roofs.map((roof) => flat(px, py, roof)), points(px, py)]),
      el('figcaption', {class: 'soft'},
         `Solid: reading from memory, front to back (${short(read)} GB/s), and arithmetic. Dashed: pages in random order (${
             short(gather)} GB/s). ` +
             'Results in cache may lie above. Numbers are those of the table.'));
}

function rooflineSection(ceilings, rows) {
  const figures = ceilings.map((c) => roofline(c, rows.filter((row) => row.r.threads === c.threads))).filter(Boolean);
  return figures.length > 0 && section('roofline', 'Roofline', el('div', {class: 'maps'}, figures));
}

// Series of at least two thread counts: same case, same kernel asked for, same promise.
function scalingSeries(rows) {
  const series = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.number, textOf(row.r.asked_kernel), row.r.batch_invariant === true]);
    series.set(key, [...(series.get(key) || []), row].sort((a, b) => numberOf(a.r.threads) - numberOf(b.r.threads)));
  }
  return [...series.values()].filter((s) => s.length > 1 && s[0].r.threads === 1);
}

function scalingSection(ceilings, rows) {
  const series = scalingSeries(rows.filter((row) => row.r.status !== 'wrong')),
        most = Math.max(1, ...rows.map((row) => numberOf(row.r.threads, 1)));
  if (series.length === 0) return null;
  const one = recordOf(ceilings.find((c) => c.threads === 1)), reads = (c) => numberOf(coldRead(c).stream_gbs);
  const memory = reads(one) > 0 ? ceilings.map((c) => [numberOf(c.threads, 1), reads(c) / reads(one)]) : [];
  const fasterBy = (s, row) => s[0].seconds.median / row.seconds.median;
  const highest = Math.max(most, ...series.flatMap((s) => s.map((row) => fasterBy(s, row)))) * 1.05;
  const counts = [...new Set(rows.map((row) => numberOf(row.r.threads, 1)))];
  const curves = (px, py) => series.map(
      (s) =>
          [path(s.map((row) => [px(row.r.threads), py(fasterBy(s, row))]), 'result'),
           s.slice(1).map(
               (row) => mark(
                   px(row.r.threads), py(fasterBy(s, row)), row,
                   `${row.number}: ${variantName(row.r)}, ${times(fasterBy(s, row))}`))]);
  return section(
      'scaling', 'Threads',
      el('figure', {},
         plane(
             {
               width: 720,
               height: 340,
               x: {min: 0.8, max: most * 1.08},
               y: {min: 0, max: highest},
               xTicks: counts.map((n) => [n, String(n)]),
               yTicks: counts.map((n) => [n, `${n}\u00d7`]),
               xLabel: 'threads',
               yLabel: 'times as fast as one thread',
               label: `Scaling to ${most} threads of ${plural(series.length, 'case')}`
             },
             (px, py) =>
                 [path([[px(1), py(1)], [px(most), py(most)]], 'gather'),
                  memory.length > 1 && path(memory.map(([n, f]) => [px(n), py(Math.min(highest, f))]), 'roof'), curves(px, py)]),
         el('figcaption', {class: 'soft'},
            'Dashed: in proportion. Solid: what reading from memory gained on this machine in this run.')));
}

function ceilingsSection(ceilings) {
  const rows = ceilings.flatMap((c) => recordsOf(c.reads).map((read, i, all) => ({c, read, last: i === all.length - 1})));
  const of = (title, value) =>
      ({title, cell: (row) => (isNumber(value(row)) && value(row) > 0 ? short(value(row)) : ''), class: 'number'});
  const columns = [
    of('threads', ({c}) => c.threads), of('working set, MiB', ({read}) => numberOf(read.bytes) / 1048576),
    of('read, GB/s', ({read}) => read.stream_gbs), of('page gather, GB/s', ({read}) => read.gather_gbs),
    of('f32 FMA, GFLOP/s', ({c, last}) => last && c.fma_gflops), of('bf16 dot', ({c, last}) => last && c.bf16_dot_gflops),
    of('bf16 AMX', ({c, last}) => last && c.amx_gflops), of('16-bit mma', ({c, last}) => last && c.mma_gflops), of('hop, ns', ({c, last}) => last && c.ping_pong_ns),
    {title: 'drift', cell: ({c, last}) => (last ? percent(c.drift) : ''), class: 'number'}
  ];
  return rows.length > 0 &&
      section(
             'ceilings', 'What this machine can do', dataTable({label: 'Ceilings', columns, rows, compact: true}).node,
             el('p', {class: 'soft'},
                'Best of many trials at the start and at the end of the run; drift is how far the two are apart.'));
}
