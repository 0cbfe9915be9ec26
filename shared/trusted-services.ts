/** A service that issues ID tokens to its jobs. */
export interface TrustedService {
  issuer: string;
  /** The claim that names a repository. */
  claim: string;
  /** What the claim always looks like. */
  form: RegExp;
  /** The form, for people. */
  argument: string;
}

const GITHUB: TrustedService = {
  issuer: 'https://token.actions.githubusercontent.com',
  claim: 'repository',
  form: /^[\w.-]+\/[\w.-]+$/,
  argument: 'owner/repository',
};
const GITLAB: TrustedService = {
  issuer: 'https://gitlab.com',
  claim: 'project_path',
  form: /^[\w.-]+(?:\/[\w.-]+)+$/,
  argument: 'group/project',
};

/** The services that the command line knows by name. */
export const TRUSTED_SERVICES = { github: GITHUB, gitlab: GITLAB } as const;

/**
 * What is wrong with a claim that the tokens of a known service never have; null if nothing is. A value that
 * ends in `*` stands for every value with that beginning.
 */
export function impossibleClaim(
  issuer: string,
  claims: Readonly<Record<string, string>>,
): { claim: string; message: string } | null {
  const service = Object.values(TRUSTED_SERVICES).find((each) => each.issuer === issuer);
  if (!service || !Object.hasOwn(claims, service.claim)) return null;
  const value = claims[service.claim] ?? '';
  if (value.endsWith('*') || service.form.test(value)) return null;
  return { claim: service.claim, message: `Expected ${service.argument}; no token has another form.` };
}
