export const LIFESPANS = [
  ['7d', '7 days'],
  ['1m', '1 month'],
  ['6m', '6 months'],
  ['1y', '1 year'],
  ['forever', 'No end'],
] as const;
