/** A time-based code of an app, or a code by e-mail (specification 5.6). */
export const SECOND_FACTOR_METHODS = ['totp', 'email'] as const;
export type SecondFactorMethod = (typeof SECOND_FACTOR_METHODS)[number];
