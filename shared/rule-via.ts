/**
 * What a network rule opens: `all` is the ports and SQL over HTTP, `sql` is SQL over HTTP
 * alone.
 */
export const RULE_VIAS = ['all', 'sql'] as const;
export type RuleVia = (typeof RULE_VIAS)[number];
