/** Networks that a rule can name instead of listing their ranges, which their owners publish and change. */
export const NETWORK_NAMES = ['cloudflare', 'github-actions'] as const;
export type NetworkName = (typeof NETWORK_NAMES)[number];

export const isNetworkName = (text: string): text is NetworkName =>
  (NETWORK_NAMES as readonly string[]).includes(text);

/**
 * How many ranges a list has. A shorter one is a fault of its source. A rule counts against the rules of its
 * project as the longest list, so that a longer list never exceeds their number.
 */
export const RANGES_OF_LIST: Record<NetworkName, { least: number; most: number }> = {
  cloudflare: { least: 10, most: 100 },
  'github-actions': { least: 50, most: 1_500 },
};
