/** Why the statements of a schema difference are not proven; null if they are. */
export type UnprovenReason = 'not_modelled' | 'too_large' | 'too_long' | 'busy' | null;

const SENTENCES: Record<NonNullable<UnprovenReason>, string> = {
  not_modelled:
    'The statements were tried on a copy of the other schema without rows. What they leave different is listed.',
  too_large:
    'The statements were not tried, because the schema is too large. Rehearse them before you run them.',
  too_long:
    'The statements were not tried to the end, because that takes too long. Rehearse them before you run them.',
  busy: 'The statements were not tried, because others are being tried. Compare again.',
};

/** What a reader of the statements has to know about them. */
export const schemaProof = (reason: UnprovenReason): string =>
  reason === null
    ? 'The statements were tried on a copy of the other schema without rows, and left the schema of this branch.'
    : SENTENCES[reason];

/** Owners and grants of the roles that every project has: they are the same after every migration. */
const OF_OWN_ROLES = /^(?:ALTER\b.* OWNER TO|(?:GRANT|REVOKE)\b.* (?:TO|FROM)) "?[gu]_[0-9a-f]{32}_\w+"?$/s;

/** The statements of a difference as a script, which is a migration for any database; empty without one. */
export const schemaScript = (statements: readonly string[]): string =>
  statements
    .filter((statement) => !OF_OWN_ROLES.test(statement))
    .map((statement) => `${statement};`)
    .join('\n');
