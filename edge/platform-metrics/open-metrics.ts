export const OPEN_METRICS = 'application/openmetrics-text; version=1.0.0; charset=utf-8';

export interface Sample {
  labels?: Record<string, string>;
  value: number;
}

/** A metric family of OpenMetrics; the samples of a counter get the suffix `_total`. */
export interface MetricFamily {
  name: string;
  type: 'gauge' | 'counter';
  help: string;
}

/** The text format of OpenMetrics 1.0. */
export const toOpenMetrics = (families: readonly (MetricFamily & { samples: Sample[] })[]): string =>
  `${families.flatMap(linesOf).join('\n')}\n# EOF\n`;

function linesOf({ name, type, help, samples }: MetricFamily & { samples: Sample[] }): string[] {
  const sampleName = type === 'counter' ? `${name}_total` : name;
  return [
    `# TYPE ${name} ${type}`,
    `# HELP ${name} ${help}`,
    ...samples.map(({ labels, value }) => `${sampleName}${labels ? inBraces(labels) : ''} ${value}`),
  ];
}

const inBraces = (labels: Record<string, string>): string =>
  `{${Object.entries(labels)
    .map(([label, value]) => `${label}="${escaped(value)}"`)
    .join(',')}}`;

const escaped = (text: string): string =>
  text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');
