// The last minutes as lines.
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { count, perSecond } from '../lib/format';
import { color, watchColors } from '../shell/theme';
import { type Sample, kSamples } from './feed';

interface Line {
  label: string;
  color: string; // a custom property
  of: (sample: Sample) => number;
}

interface Graph {
  title: string;
  lines: Line[];
  show: (n: number) => string;
  least: number; // the axis reaches at least this far
}

const kGraphs: Graph[] = [
  {
    title: 'Tokens a second',
    lines: [{ label: 'tokens/s', color: '--line-a', of: (s) => s.tokensPerSecond }],
    show: perSecond,
    least: 1,
  },
  {
    title: 'Requests',
    lines: [
      { label: 'waiting', color: '--line-b', of: (s) => s.waiting },
      { label: 'prompt', color: '--line-c', of: (s) => s.prefill },
      { label: 'writing', color: '--line-a', of: (s) => s.decode },
    ],
    show: count,
    least: 4,
  },
  {
    title: 'KV blocks',
    lines: [
      { label: 'in use', color: '--line-a', of: (s) => s.blocksUsed },
      { label: 'cached', color: '--line-c', of: (s) => s.blocksCached },
    ],
    show: count,
    least: 4,
  },
];

const kHeight = 108;

function dataOf(graph: Graph, samples: Sample[]): uPlot.AlignedData {
  return [samples.map((s) => s.at), ...graph.lines.map((line) => samples.map(line.of))];
}

function optionsOf(graph: Graph, width: number): uPlot.Options {
  const faint = color('--faint');
  const grid = color('--rule');
  const font = '11px system-ui, sans-serif';
  return {
    width,
    height: kHeight,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 4, 8, 0],
    scales: {
      x: { range: (_, __, max) => [max - kSamples, max] },
      y: { range: (_, __, max) => [0, Math.max(max * 1.1, graph.least)] },
    },
    axes: [
      { show: false },
      {
        stroke: faint,
        font,
        size: 44,
        space: 32,
        grid: { stroke: grid, width: 1 },
        ticks: { show: false },
        values: (_, ticks) => ticks.map((n) => n.toLocaleString('en-US', { maximumFractionDigits: 1 })),
      },
    ],
    series: [{}, ...graph.lines.map((line) => ({ stroke: color(line.color), width: 1.75, points: { show: false } }))],
  };
}

function Plot({ graph, samples }: { graph: Graph; samples: Sample[] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(samples);
  latest.current = samples;
  useEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      const width = box.current!.clientWidth || 280;
      plot.current = new uPlot(optionsOf(graph, width), dataOf(graph, latest.current), box.current!);
    };
    draw();
    const observer = new ResizeObserver(([entry]) =>
      plot.current?.setSize({ width: entry!.contentRect.width, height: kHeight }),
    );
    observer.observe(box.current!);
    const end = watchColors(draw);
    return () => {
      observer.disconnect();
      end();
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(dataOf(graph, samples)), [samples]);
  const last = samples.at(-1);
  const words = graph.lines.map((line) => `${line.label} ${last ? graph.show(line.of(last)) : '–'}`).join(', ');
  return (
    <figure class="graph">
      <figcaption>
        <span class="graph-title">{graph.title}</span>
        {graph.lines.map((line) => (
          <span class="graph-key" key={line.label}>
            <i style={{ background: `var(${line.color})` }} />
            {line.label} <b>{last ? graph.show(line.of(last)) : '–'}</b>
          </span>
        ))}
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={`${graph.title} over the last five minutes; now ${words}.`} />
    </figure>
  );
}

export function Graphs({ samples }: { samples: Sample[] }) {
  return (
    <section class="card graphs" aria-label="The last five minutes">
      <h2>The last five minutes</h2>
      <div class="graph-row">
        {kGraphs.map((graph) => (
          <Plot key={graph.title} graph={graph} samples={samples} />
        ))}
      </div>
    </section>
  );
}
