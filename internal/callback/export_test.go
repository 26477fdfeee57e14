package callback

// ParkedBatch is the number of parked items per store query.
const ParkedBatch = parkedBatch
